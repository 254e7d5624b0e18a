"""OpenVINO GenAI: the same GGUF file, read by its own reader; plain, prompt lookup, or with a draft model.

Owns how it is set up and asked. Knows nothing of processes. Checkpoints of other formats would have to be exported
first, by optimum-intel, which is not asked for here. Of its options one differs from what it does by itself: it would
keep the cache of a prompt for the next one, and here every prompt is read whole.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiling.peers.first_layers import write_first_layers
from profiling.peers.peer import Peer, PeerAnswer, PeerMode, PeerRefusal, PeerSettings, TokenClock, need_gguf

DISTRIBUTION = "openvino-genai"
_MOST_BATCHED_TOKENS = 1 << 20
"""A prompt is read in one piece, as its own pipeline for one user does."""
_PRECISIONS = ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
"""What it computes in, keeps its cache in, and over how many activations at a time it rounds them to integers."""
_MAX_NGRAM = 3
"""As in its samples."""
_ASSISTANT_TOKENS = 5
"""As in its samples of speculative decoding."""


class OpenVinoPeer(Peer):
    """One `LLMPipeline` on the CPU."""

    def __init__(self, settings: PeerSettings) -> None:
        """Load the model.

        Raises:
            ImportError: if openvino-genai is not installed.
            PeerRefusal: if target or draft is no GGUF file.
        """
        import openvino
        import openvino_genai

        path = need_gguf(settings, "openvino-genai", "export it with optimum-intel for a measurement of your own")
        self._genai: Any = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = _MOST_BATCHED_TOKENS
        # A pipeline tells nothing of its compiled model: it is given what the device would choose, so that it is known.
        chosen = {name: openvino.Core().get_property("CPU", name) for name in _PRECISIONS}
        device: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": settings.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            **chosen,
        }
        options: dict[str, Any] = {"scheduler_config": scheduler, **device}
        self._request: dict[str, int] = {}
        settled = ", ".join(f"{name} {_text(value)}" for name, value in chosen.items())
        settled += ", latency hint, one stream, paged attention, no prefix caching"
        with tempfile.TemporaryDirectory(prefix="slipstream-draft-") as folder:
            if settings.mode is PeerMode.PROMPT_LOOKUP:
                options["prompt_lookup"] = True
                self._request = {"num_assistant_tokens": settings.lookup_tokens, "max_ngram_size": _MAX_NGRAM}
                settled += f", {settings.lookup_tokens} tokens looked up by n-grams of at most {_MAX_NGRAM}"
            elif settings.mode is PeerMode.ASSISTED:
                _write_draft(openvino_genai, settings, Path(folder))
                options["draft_model"] = openvino_genai.draft_model(folder, "CPU", **device)
                self._request = {"num_assistant_tokens": _ASSISTANT_TOKENS}
                settled += f", {_ASSISTANT_TOKENS} tokens drafted, {settings.draft_text}"
            self._pipeline: Any = openvino_genai.LLMPipeline(path, "CPU", **options)
        self.version = importlib.metadata.version(DISTRIBUTION)
        self.settled = settled

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Write exactly `max_tokens` tokens; see `Peer`."""
        import numpy as np
        import openvino

        config = self._genai.GenerationConfig(
            max_new_tokens=max_tokens, ignore_eos=True, do_sample=False, apply_chat_template=False, **self._request
        )
        prompt = openvino.Tensor(np.array([list(prompt_ids)], dtype=np.int64))
        clock = TokenClock()
        self._pipeline.generate(prompt, config, _streamer(self._genai, clock))
        return clock.answer(max_tokens)


def _text(value: Any) -> str:
    """A property's value; an element type has a name of its own."""
    return str(value.to_string() if hasattr(value, "to_string") else value)


def _write_draft(genai: Any, settings: PeerSettings, folder: Path) -> None:
    """Write the draft into `folder` as OpenVINO's own format, the only one that it takes for drafts.

    Raises:
        PeerRefusal: if the draft is no GGUF file.
    """
    path = folder / "draft.gguf"
    if settings.draft is None:
        write_first_layers(settings.target, path, num_layers=settings.num_draft_layers)
    elif settings.draft.lower().endswith(".gguf"):
        shutil.copyfile(settings.draft, path)
    else:
        raise PeerRefusal(f"openvino-genai reads GGUF files, and the draft {settings.draft} is none")
    # What it reads from a GGUF file it saves beside that file.
    genai.LLMPipeline(str(path), "CPU", enable_save_ov_model=True)


def _streamer(genai: Any, clock: TokenClock) -> Any:
    running = genai.StreamingStatus.RUNNING

    class ClockStreamer(genai.StreamerBase):  # type: ignore[misc]  # known only once the library is there
        """Hands tokens to the clock."""

        def write(self, token_ids: int | Sequence[int]) -> Any:
            clock.take([token_ids] if isinstance(token_ids, int) else list(token_ids))
            return running

        def end(self) -> None:
            pass

    return ClockStreamer()
