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
from profiling.peers.label import SystemLabel
from profiling.peers.peer import PeerMode, PeerName, PeerSettings

MEASURED_PEERS = (PeerName.TRANSFORMERS, PeerName.LLAMA_CPP, PeerName.OPENVINO)
REFERENCE = SystemLabel(owner=PeerName.TRANSFORMERS.value, weights="float32", mode=PeerMode.PLAIN.value)
"""What speeds are told over beside each system's own plain decoding."""
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
_DRAFTED_TOKENS = {PeerName.TRANSFORMERS: 20, PeerName.OPENVINO: 5}
"""That an assistant proposes at once; of transformers what it begins with by itself."""
_MODES = {
    PeerName.TRANSFORMERS: (PeerMode.PLAIN, PeerMode.ASSISTED, PeerMode.PROMPT_LOOKUP),
    PeerName.LLAMA_CPP: (PeerMode.PLAIN, PeerMode.PROMPT_LOOKUP),
    PeerName.OPENVINO: (PeerMode.PLAIN, PeerMode.ASSISTED, PeerMode.PROMPT_LOOKUP),
}


@dataclass(frozen=True, kw_only=True)
class PeerPlan:
    """One system of a peer."""

    label: SystemLabel
    settings: PeerSettings

    @property
    def unrepacked_label(self) -> SystemLabel:
        """Of the second try."""
        return replace(self.label, weights=f"{self.label.weights} not repacked")

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
        weights = REFERENCE.weights if peer is PeerName.TRANSFORMERS else stored_weights(target)
        for mode in _MODES[peer]:
            lengths = tuple(lookup_tokens) or _LOOKUP_TOKENS[peer]
            for length in lengths if mode is PeerMode.PROMPT_LOOKUP else lengths[:1]:
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
                told = {
                    PeerMode.PLAIN: "",
                    PeerMode.ASSISTED: f"by {settings.draft_name}",
                    PeerMode.PROMPT_LOOKUP: str(length),
                }[mode]
                label = SystemLabel(owner=peer.value, weights=weights, mode=mode.value, draft=told)
                plans.append(PeerPlan(label=label, settings=settings))
    return plans


def longest_block(peers: Sequence[PeerName], lookup_tokens: Sequence[int]) -> int:
    """The most tokens that any system of these peers writes in one step; 0 without peers."""
    blocks = [1 + max(lookup_tokens or _LOOKUP_TOKENS[peer]) for peer in peers]
    return max([*blocks, *(1 + _DRAFTED_TOKENS[peer] for peer in peers if peer in _DRAFTED_TOKENS)], default=0)


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
