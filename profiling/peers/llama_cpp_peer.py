"""llama.cpp through llama-cpp-python: the same GGUF file, plain and with its own prompt lookup.

Owns how it is set up and asked. Knows nothing of processes. Its documentation (README, "Speculative Decoding") proposes
ten tokens at once, and two on a machine without a GPU; a benchmark measures both. Some of its builds die in the kernels
for AMX (https://github.com/ggml-org/llama.cpp/issues/20824); these are left out by not repacking weights for them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

from profiling.peers.peer import Peer, PeerAnswer, PeerMode, PeerRefusal, PeerSettings, TokenClock, need_gguf

DISTRIBUTION = "llama-cpp-python"
_BATCH_TOKENS = 512


class LlamaCppPeer(Peer):
    """One `Llama`."""

    def __init__(self, settings: PeerSettings) -> None:
        """Load the model.

        Raises:
            ImportError: if llama-cpp-python is not installed.
            PeerRefusal: if the target is no GGUF file, a draft model is asked for, or repacking cannot be left out.
        """
        from llama_cpp import Llama, llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        if settings.mode is PeerMode.ASSISTED:
            raise PeerRefusal(f"{DISTRIBUTION} takes no draft model")
        path = need_gguf(settings, "llama.cpp", "convert it with llama.cpp's convert_hf_to_gguf.py")
        lookup = None
        if settings.mode is PeerMode.PROMPT_LOOKUP:
            lookup = LlamaPromptLookupDecoding(num_pred_tokens=settings.lookup_tokens)
        if not settings.may_repack:
            _forbid_repacking(llama_cpp)
        self._llama: Any = Llama(
            path,
            n_ctx=settings.context_length,
            n_batch=_BATCH_TOKENS,
            n_ubatch=_BATCH_TOKENS,
            n_threads=settings.threads,
            # Its default for the reading of the prompt is all cores.
            n_threads_batch=settings.threads,
            draft_model=lookup,
            verbose=False,
        )
        self.version = importlib.metadata.version(DISTRIBUTION)
        self.settled = f"n_batch {_BATCH_TOKENS}, mmap" + ("" if settings.may_repack else ", weights not repacked")
        self.settled += "" if lookup is None else f", {settings.lookup_tokens} tokens looked up by n-grams of at most 2"

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Write exactly `max_tokens` tokens; see `Peer`."""
        # Else it would reuse what the prompt has in common with the last one.
        self._llama.reset()
        clock = TokenClock()
        tokens = self._llama.generate(list(prompt_ids), temp=0.0, repeat_penalty=1.0)
        for _, token in zip(range(max_tokens), tokens, strict=False):
            clock.take([int(token)])
        tokens.close()
        return clock.answer(max_tokens)


def _forbid_repacking(bindings: Any) -> None:
    """Have models loaded from now on keep their weights as the file has them; `Llama` has no option for that.

    Raises:
        PeerRefusal: if this version has no such setting.
    """
    defaults = bindings.llama_model_default_params
    # A structure of ctypes would take a name that it does not have, and do nothing.
    if not hasattr(defaults(), "use_extra_bufts"):
        raise PeerRefusal(f"this {DISTRIBUTION} cannot leave weights as they are; update it")

    def without_repacking() -> Any:
        params = defaults()
        params.use_extra_bufts = False
        return params

    bindings.llama_model_default_params = without_repacking
