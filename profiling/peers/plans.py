"""Which systems of the peers there are: their names, their weights, and what each loads.

Owns the choice. Knows nothing of processes, nor of how a peer is asked. Each is given the target's own weights, as
stored where it reads that format, else in float32; the name says which.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from models import GgufFile
from profiling.peers.peer import PeerMode, PeerName, PeerSettings

MEASURED_PEERS = (PeerName.TRANSFORMERS, PeerName.LLAMA_CPP, PeerName.OPENVINO)
INSTALL_COMMAND = "pip install 'slipstream[bench]'"
_DISTRIBUTIONS = {
    PeerName.TRANSFORMERS: "transformers",
    PeerName.LLAMA_CPP: "llama-cpp-python",
    PeerName.OPENVINO: "openvino-genai",
}
_LOOKUP_TOKENS = {
    # One is the documented length, llama.cpp's for machines without a GPU; where it is short, ten are measured too.
    PeerName.TRANSFORMERS: (10,),
    PeerName.LLAMA_CPP: (10, 2),
    PeerName.OPENVINO: (10, 5),
}
_MODES = {
    PeerName.TRANSFORMERS: (PeerMode.PLAIN, PeerMode.ASSISTED, PeerMode.PROMPT_LOOKUP),
    PeerName.LLAMA_CPP: (PeerMode.PLAIN, PeerMode.PROMPT_LOOKUP),
    PeerName.OPENVINO: (PeerMode.PLAIN, PeerMode.ASSISTED, PeerMode.PROMPT_LOOKUP),
}


@dataclass(frozen=True, kw_only=True)
class PeerPlan:
    """One system of a peer."""

    system: str
    """Its name, as `PEER WEIGHTS, MODE`."""
    settings: PeerSettings

    @property
    def second_try(self) -> PeerSettings | None:
        """What to load where the first process died; None where there is nothing else to try."""
        return replace(self.settings, may_repack=False) if self.settings.peer is PeerName.LLAMA_CPP else None

    @property
    def missing(self) -> str:
        """What is said of it where it is not installed."""
        return f"{_DISTRIBUTIONS[self.settings.peer]} is not installed; {INSTALL_COMMAND}"


def plan_peers(
    peers: Sequence[PeerName],
    *,
    target: str,
    threads: int,
    context_length: int,
    draft: str | None,
    num_draft_layers: int,
    lookup_tokens: Sequence[int] = (),
) -> list[PeerPlan]:
    """The systems of some peers, in their order.

    Args:
        draft: a model that proposes where a peer is assisted; None takes the target's own first layers.
        num_draft_layers: how many of these.
        lookup_tokens: lengths of prompt lookup, for all peers; empty takes each peer's own.
    """
    plans = []
    for peer in peers:
        weights = "float32" if peer is PeerName.TRANSFORMERS else stored_weights(target)
        for mode in _MODES[peer]:
            lengths = tuple(lookup_tokens) or _LOOKUP_TOKENS[peer]
            for length in lengths if mode is PeerMode.PROMPT_LOOKUP else lengths[:1]:
                suffix = f" {length}" if mode is PeerMode.PROMPT_LOOKUP else ""
                settings = PeerSettings(
                    peer=peer,
                    mode=mode,
                    target=target,
                    threads=threads,
                    context_length=context_length,
                    draft=draft,
                    num_draft_layers=num_draft_layers,
                    lookup_tokens=length,
                )
                plans.append(PeerPlan(system=f"{peer.value} {weights}, {mode.value}{suffix}", settings=settings))
    return plans


def stored_weights(target: str) -> str:
    """The type that most weights of a GGUF file have, as `Q4_1`; "GGUF" where the target is no such file.

    Raises:
        CheckpointError: if the file cannot be read.
    """
    path = Path(target)
    if path.suffix.lower() != ".gguf":
        return "GGUF"
    file = GgufFile(path)
    try:
        numbers: Counter[str] = Counter()
        for tensor in file.tensors.values():
            numbers[tensor.ggml_type.name] += math.prod(tensor.shape)
        return numbers.most_common(1)[0][0]
    finally:
        file.close()
