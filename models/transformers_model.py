"""Any `AutoModelForCausalLM` whose cache can be cut back exactly, behind the project's own protocol.

Owns the calls of the wrapped model and the padding that makes a row's bits independent of the call it came
in. Knows nothing of rounds or text, nor how to tell which models can be rewound (`models.rewind_check`). The lean
`models.decoder` is faster; this is for architectures that it does not compute.

Shape suffixes: T tokens of a call, R logit rows asked for, W tokens of a padded call, S cache positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from models.block_width import ExactWidths, NoExactWidthsError, ProbedWidths, probe_exact_widths
from models.causal_model import Cache, check_call
from models.errors import CheckpointError, UnsupportedModelError
from models.kv_cache import KEY_BUCKET
from models.rewind_check import (
    check_long_past,
    check_rollback,
    measure_layers,
    random_ids,
    refuse_unless_rewindable,
    stated_context_length,
)
from models.thread_counts import with_present_count

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from models.rewindable_cache import RewindableCache

DEFAULT_MAX_BLOCK = 256
PROBED_WIDTHS = (4, 5, 6, 8, 12, 16)
"""Widths that are tried; narrower calls seldom agree with them and cost hardly less."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names under which configurations say that a layer is a mixture of experts."""


class TransformersModel:
    """A `models.causal_model.CausalModel` over a loaded transformers model."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        name: str | None = None,
        max_block: int = DEFAULT_MAX_BLOCK,
        context_length: int | None = None,
        thread_counts: Iterable[int] = (),
    ) -> None:
        """Check that the model can be rewound, by running it, and find the call widths whose rows agree.

        Puts the model into evaluation mode. Takes a few dozen short forward passes.

        Args:
            model: as `AutoModelForCausalLM.from_pretrained` gives it, with `sdpa` or `eager` attention.
            name: for messages and metrics; by default where the model was loaded from.
            max_block: most tokens one `forward` call shall take.
            context_length: most positions; by default what the model's configuration says.
            thread_counts: see `probe`.

        Raises:
            UnsupportedModelError: if the model is recurrent, convolutional, an encoder-decoder or otherwise
                cannot be rewound exactly; the message names its class.
            ValueError: if a limit or a thread count is below 1, or no context length is known.
        """
        for limit_name, limit in (("max_block", max_block), ("context_length", context_length)):
            if limit is not None and limit < 1:
                raise ValueError(f"{limit_name} must be at least 1, got {limit}")
        refuse_unless_rewindable(model)
        self._model = model.eval()
        self._config: Any = model.config.get_text_config(decoder=True)
        self._name = name or model.config.name_or_path or type(model).__name__
        self._max_block = max_block
        self._context_length = context_length or stated_context_length(model)
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._takes_logits_to_keep = "logits_to_keep" in parameters
        self._widths = ExactWidths((1,))
        self._thread_counts = with_present_count(thread_counts)
        try:
            with torch.inference_mode():
                self._layer_shapes, self._vocab_size = measure_layers(model)
                self.probe(self._thread_counts)
                check_rollback(self, model)
                check_long_past(self, model)
        except torch.OutOfMemoryError:
            raise
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedModelError(f"{type(model).__name__} fails over a preallocated cache: {error}") from error

    @classmethod
    def from_pretrained(
        cls, source: str, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu", **options: Any
    ) -> TransformersModel:
        """Load a folder or hub id: safetensors only, and never code that comes with it.

        Args:
            source: a folder in transformers' layout, or a hub id.
            dtype: of the weights.
            device: where to run.
            **options: the constructor's.

        Raises:
            CheckpointError: if files are missing or unreadable.
            UnsupportedModelError: if the architecture is unknown, or the constructor refuses it.
        """
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM

        try:
            model, report = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation="sdpa",
                output_loading_info=True,
            )
        except (OSError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{source} cannot be loaded: {error}") from error
        except (ValueError, KeyError, AttributeError, ImportError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UnsupportedModelError(f"{source} is not a causal language model known here: {reason}") from error
        if report["missing_keys"]:
            # transformers would go on with random numbers in their place.
            raise CheckpointError(
                f"{source} lacks {len(report['missing_keys'])} tensors: {min(report['missing_keys'])}"
            )
        return cls(model.to(device), **options)

    @property
    def name(self) -> str:
        """A name for messages and metrics."""
        return self._name

    @property
    def vocab_size(self) -> int:
        """Width V of a logit row."""
        return self._vocab_size

    @property
    def context_length(self) -> int:
        """Most positions the model was made for."""
        return self._context_length

    @property
    def max_block(self) -> int:
        """Most tokens one `forward` call takes."""
        return self._max_block

    @property
    def device(self) -> torch.device:
        """Where token ids are expected and logits are returned."""
        return torch.device(self._model.device)

    @property
    def widths(self) -> ExactWidths:
        """The call widths in use."""
        return self._widths

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """Numbers of intra-op threads, ascending, among which a caller may change without changing a row's bits."""
        return self._thread_counts

    def new_cache(self, capacity: int) -> RewindableCache:
        """An empty cache for one sequence of at most `capacity` tokens.

        Raises:
            ValueError: if `capacity` is below 1 or above `context_length`.
        """
        from models.rewindable_cache import RewindableCache

        if capacity > self._context_length:
            raise ValueError(f"capacity must be at most {self._context_length}, the model's context, got {capacity}")
        return RewindableCache(self._layer_shapes, capacity=capacity, spare_positions=max(PROBED_WIDTHS))

    @torch.inference_mode()
    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        """Append T tokens to the cache and return the logits of the last `num_logits` rows.

        Args:
            token_ids_T: int64, 1 <= T <= max_block, on `device`; position of the first is `cache.length`.
            cache: one that this model's `new_cache` made.
            num_logits: 0 <= num_logits <= T; 0 only fills the cache.

        Returns:
            logits_RV, float32. Made in inference mode: clone it before writing to it outside of that mode.

        Raises:
            ValueError: if T is 0, above `max_block`, does not fit into the cache, or `cache` is not this model's.
                Whatever is raised, the cache holds what it held before.
        """
        rewindable = self._check_call(token_ids_T, cache, num_logits)
        num_tokens, start = token_ids_T.shape[0], cache.length
        first_wanted = num_tokens - num_logits
        logits = [torch.empty(0, self._vocab_size, device=self.device)]
        done = 0
        try:
            for num_real, width in self._plan(start, num_tokens):
                ids_W = token_ids_T.new_zeros(width)
                ids_W[:num_real] = token_ids_T[done : done + num_real]
                logits_WV = self._run(ids_W, rewindable, needs_logits=done + num_real > first_wanted)
                logits.append(logits_WV[max(0, first_wanted - done) : num_real])
                rewindable.advance(num_real)
                done += num_real
        except BaseException:
            rewindable.rollback(start)
            raise
        return torch.cat(logits)

    def probe(self, thread_counts: Iterable[int] = ()) -> ExactWidths:
        """Find the exact widths again, and use them from now on.

        Args:
            thread_counts: numbers of intra-op threads, beside this thread's present one, under which a row shall have
                the same bits. Where no widths agree under all of them at a bearable cost, the property of that name
                afterwards holds the present one alone.

        Raises:
            TypeError, ValueError: if a count is not a whole number from 1 on.
        """
        counts, alone = with_present_count(thread_counts), with_present_count(())
        single_rows = ProbedWidths(widths=ExactWidths((1,)), thread_counts=alone, exact=True)
        if any((getattr(self._config, count, None) or 0) > 1 for count in EXPERT_COUNTS):
            # How many rows reach an expert depends on their neighbours, so only single rows are alike.
            probed = single_rows
        else:
            with torch.inference_mode():
                try:
                    probed = probe_exact_widths(
                        PROBED_WIDTHS,
                        self._rows_at_width,
                        max(PROBED_WIDTHS),
                        must_agree=self.device.type == "cpu",
                        thread_counts=counts,
                    )
                except NoExactWidthsError:
                    probed = single_rows
        self._widths, self._thread_counts = probed.widths, probed.thread_counts
        return self._widths

    def _check_call(self, token_ids_T: torch.Tensor, cache: Cache, num_logits: int) -> RewindableCache:
        from models.rewindable_cache import RewindableCache

        if not isinstance(cache, RewindableCache) or cache.shapes != self._layer_shapes:
            raise ValueError(f"cache must come from this model's new_cache; got another {type(cache).__name__}")
        check_call(token_ids_T, cache, num_logits, max_block=self._max_block)
        return cache

    def _plan(self, start: int, num_tokens: int) -> list[tuple[int, int]]:
        """Calls as (real tokens, padded width); none crosses a key bucket, where the key length changes."""
        calls = []
        while num_tokens:
            in_bucket = min(num_tokens, KEY_BUCKET - start % KEY_BUCKET)
            start, num_tokens = start + in_bucket, num_tokens - in_bucket
            for width in self._widths.cover(in_bucket):
                calls.append((min(width, in_bucket), width))
                in_bucket -= width
        return calls

    def _run(self, ids_W: torch.Tensor, cache: RewindableCache, *, needs_logits: bool) -> torch.Tensor:
        """One call of the model at the cache's length; logits_WV in float32, or only the last row of them."""
        start, width = cache.length, ids_W.shape[0]
        key_length = cache.key_length_at(start)
        cache.attend_up_to(key_length)
        # A mask of ones asks for the same attention kernel at every position, the first included.
        options: dict[str, Any] = {"attention_mask": ids_W.new_ones(1, key_length)}
        if self._takes_positions:
            # Padding may lie beyond the context, where learned positions end; no query sees it.
            positions_W = torch.arange(start, start + width, device=ids_W.device)
            options["position_ids"] = positions_W.clamp_(max=self._context_length - 1)[None]
        if self._takes_logits_to_keep and not needs_logits:
            options["logits_to_keep"] = 1
        logits_1WV = self._model(input_ids=ids_W[None], cache=cache.layered, use_cache=True, **options).logits
        return torch.as_tensor(logits_1WV[0]).float()

    def _rows_at_width(self, width: int) -> list[torch.Tensor]:
        """The same rows, across the edge of a key bucket, in calls of one width and again half a width later."""
        num_rows = min(max(PROBED_WIDTHS), self._context_length)
        first = min(KEY_BUCKET - num_rows // 2, self._context_length - num_rows)
        ids_T = random_ids(num_rows, self._vocab_size, self.device)
        before, self._widths = self._widths, ExactWidths((width,))
        try:
            runs = []
            for shift in {0, width // 2}:
                cache = self.new_cache(first + num_rows)
                cache.fill_at_random()
                cache.advance(first)
                blocks_T = [ids_T[:shift], *torch.split(ids_T[shift:], width)]
                runs.append(torch.cat([self.forward(b, cache, num_logits=len(b)) for b in blocks_T if len(b)]))
        finally:
            self._widths = before
        return runs
