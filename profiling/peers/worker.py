"""The process of one peer: `python -m profiling.peers.worker`, started by `profiling.peers.process`.

Reads lines of JSON from standard input and writes one for each to its own copy of standard output: the settings first,
then one prompt after the other. Whatever a library prints goes to standard error. Owns what is measured of a process:
its peak memory, and the processor time that it takes while nobody asks it anything. Knows nothing of the benchmark.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TextIO, TypeVar

from profiling.peers.peer import Peer, PeerAnswer, PeerName, PeerRefusal, PeerSettings

Outcome = TypeVar("Outcome")

_STATUS = Path("/proc/self/status")
_PACKAGES = {
    PeerName.TRANSFORMERS: ("transformers",),
    PeerName.LLAMA_CPP: ("llama_cpp",),
    PeerName.OPENVINO: ("openvino", "openvino_genai"),
    PeerName.SLIPSTREAM: (),
}
"""Without these a peer is not installed; whatever else cannot be imported is a fault of the installation."""
_SHORTEST_IDLE_S = 0.05
"""Of less, the share of processor time says nothing."""


def main() -> int:
    """Serve until standard input ends."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer: Peer | None = None
    rested = (time.perf_counter(), time.process_time())
    for line in sys.stdin:
        idle_share = _busy_share(rested)
        message = json.loads(line)
        if peer is None:
            settings = PeerSettings.from_json(message)
            peer = _guarded(out, partial(load_peer, settings), _PACKAGES[settings.peer])
            if peer is None:
                return 1
            _send(out, {"version": peer.version, "settled": peer.settled})
        else:
            answer = _guarded(out, partial(_answer, peer, message["prompt_ids"], message["max_tokens"]))
            if answer is None:
                return 1
            if isinstance(answer, PeerAnswer):
                memory = {"peak_memory_bytes": peak_memory_bytes(), "idle_cpu_share": idle_share}
                _send(out, {**asdict(answer), **memory})
            else:
                _send(out, {"refused": answer})
        rested = (time.perf_counter(), time.process_time())
    if peer is not None:
        peer.close()
    return 0


def load_peer(settings: PeerSettings) -> Peer:
    """The peer that the settings name, loaded.

    Raises:
        ImportError: if its library is not installed.
        PeerRefusal: if it cannot do what is asked for.
    """
    match settings.peer:
        case PeerName.TRANSFORMERS:
            from profiling.peers.transformers_peer import TransformersPeer

            return TransformersPeer(settings)
        case PeerName.LLAMA_CPP:
            from profiling.peers.llama_cpp_peer import LlamaCppPeer

            return LlamaCppPeer(settings)
        case PeerName.OPENVINO:
            from profiling.peers.openvino_peer import OpenVinoPeer

            return OpenVinoPeer(settings)
        case PeerName.SLIPSTREAM:
            from profiling.peers.own_runtime import OwnRuntime

            return OwnRuntime(settings)


def peak_memory_bytes() -> int | None:
    """The most memory that this process had resident; None where the system does not tell."""
    # Not from getrusage on Linux: its peak begins with that of the process that started this one.
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _busy_share(rested: tuple[float, float]) -> float | None:
    idle_s = time.perf_counter() - rested[0]
    return None if idle_s < _SHORTEST_IDLE_S else (time.process_time() - rested[1]) / idle_s


def _answer(peer: Peer, prompt_ids: Sequence[int], max_tokens: int) -> PeerAnswer | str:
    """An answer, or why this one prompt has none; the peer can be asked the next."""
    try:
        return peer.answer(prompt_ids, max_tokens)
    except PeerRefusal as error:
        return str(error)


def _guarded(out: TextIO, work: Callable[[], Outcome], packages: Sequence[str] = ()) -> Outcome | None:
    """What `work` returns; None where it fails, after the other end was told why.

    Args:
        packages: a peer whose work needs one of these and does not find it is not installed.
    """
    try:
        return work()
    except ModuleNotFoundError as error:
        if error.name in packages:
            _send(out, {"missing": error.name, "reason": str(error)})
        else:
            _send(out, {"failed": f"{type(error).__name__}: {error}"})
    except PeerRefusal as error:
        _send(out, {"failed": str(error)})
    except Exception as error:  # whatever a library raises is the reason that stands in the report
        _send(out, {"failed": f"{type(error).__name__}: {error}"})
    return None


def _send(out: TextIO, message: dict[str, object]) -> None:
    print(json.dumps(message), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main())
