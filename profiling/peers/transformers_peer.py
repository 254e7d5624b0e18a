"""transformers: the same weights in float32; plain, assisted, or with its own prompt lookup.

Owns how it is set up and asked. Knows nothing of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiling.peers.peer import Peer, PeerAnswer, PeerMode, PeerRefusal, PeerSettings, TokenClock


class TransformersPeer(Peer):
    """One model, and its assistant."""

    def __init__(self, settings: PeerSettings) -> None:
        """Load the model.

        Raises:
            PeerRefusal: if the model is not of the kind whose configuration is built here.
        """
        # Before this project's own packages, which would settle how its OpenMP workers wait.
        import torch  # noqa: F401
        import transformers

        from models import SlipstreamError, open_checkpoint
        from profiling.reference import first_layers, reference_model

        self._threads = settings.threads
        self._options: dict[str, Any] = {}
        try:
            with open_checkpoint(settings.target) as checkpoint:
                self._model: Any = reference_model(checkpoint)
            if settings.mode is PeerMode.ASSISTED and settings.draft is not None:
                with open_checkpoint(settings.draft) as checkpoint:
                    self._options["assistant_model"] = reference_model(checkpoint)
            elif settings.mode is PeerMode.ASSISTED:
                self._options["assistant_model"] = first_layers(self._model, settings.num_draft_layers)
            elif settings.mode is PeerMode.PROMPT_LOOKUP:
                self._options["prompt_lookup_num_tokens"] = settings.lookup_tokens
        except SlipstreamError as error:
            raise PeerRefusal(str(error)) from error
        self.version = transformers.__version__
        self.settled = (
            f"{self._model.config._attn_implementation} attention"
            + {
                PeerMode.PLAIN: "",
                PeerMode.ASSISTED: f", as many tokens drafted as it does by itself, {settings.draft_text}",
                PeerMode.PROMPT_LOOKUP: f", {settings.lookup_tokens} tokens looked up by n-grams of at most 2",
            }[settings.mode]
        )

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Write exactly `max_tokens` tokens; see `Peer`."""
        import torch

        torch.set_num_threads(self._threads)
        ids = torch.tensor([list(prompt_ids)])
        clock = TokenClock()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
            streamer=_ClockStreamer(clock),
            **self._options,
        )
        return clock.answer(max_tokens)


class _ClockStreamer:
    """Hands tokens to the clock; transformers gives a streamer the prompt first."""

    def __init__(self, clock: TokenClock) -> None:
        self._clock = clock
        self._saw_prompt = False

    def put(self, value: Any) -> None:
        if self._saw_prompt:
            self._clock.take(value.flatten().tolist())
        self._saw_prompt = True

    def end(self) -> None:
        pass
