"""What a benchmark is asked for: its command line, read and checked before anything is loaded.

Owns the options, the drafts that are compared, and where the report goes. Knows nothing of how runs are made.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from models import WeightKind
from models.demo import demo_weights
from profiling.machine import dated_name, new_file, new_folder
from profiling.peers.peer import PeerName
from profiling.peers.plans import MEASURED_PEERS, longest_block
from runtime import GenerationOptions, LoadSettings, Mode

_LEAST_TOKENS = 10
"""The first round may bring 9, and what is timed is the rest."""
_MOST_LOOKUP_TOKENS = 32


class Pair(StrEnum):
    """The target with a draft; the last two are there to see whether they do harm."""

    DEMO = "demo"
    """The drafts that ship."""
    WRONG = "wrong"
    """The target's first layer, which is hardly ever right."""
    SLOW = "slow"
    """The target itself, which is always right and as slow as itself."""


@dataclass(frozen=True, kw_only=True)
class DraftChoice:
    """Draft sources that are measured together, on a runtime of their own."""

    label: str
    sources: tuple[str, ...]
    """As a runtime takes them."""

    @property
    def suffix(self) -> str:
        """What it adds to the name of a system; nothing for the drafts that ship."""
        return "" if self.label == Pair.DEMO else f"with {self.label} draft"

    @classmethod
    def of_pair(cls, pair: Pair, target: str | None) -> DraftChoice:
        """The drafts of a pair."""
        match pair:
            case Pair.DEMO:
                return SHIPPED_DRAFTS
            case Pair.WRONG:
                return cls(label=pair.value, sources=("early-exit:1",))
            case Pair.SLOW:
                return cls(label=pair.value, sources=(target or str(demo_weights()),))

    @classmethod
    def read(cls, text: str) -> DraftChoice:
        """One or several sources with commas between them.

        Raises:
            ValueError: if a runtime would not take them, or they come to none.
        """
        sources = tuple(text.split(","))
        if sources == SHIPPED_DRAFTS.sources:
            return SHIPPED_DRAFTS
        if not LoadSettings(draft=sources).draft_specs():
            raise ValueError(f"--drafts {text} names no draft; plain decoding is measured in any case")
        return cls(label="+".join(Path(source).name or source for source in sources), sources=sources)


SHIPPED_DRAFTS = DraftChoice(label=Pair.DEMO.value, sources=("auto",))


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """What the command line asked for."""

    threads: tuple[int, ...]
    weights: tuple[WeightKind, ...]
    num_prompts: int
    max_tokens: int
    peers: tuple[PeerName, ...] = ()
    """Who is measured beside this project."""
    lookup_tokens: tuple[int, ...] = ()
    """Lengths of the peers' prompt lookup; empty takes each peer's own."""
    assistant: str | None = None
    """A model that proposes where a peer is assisted; None takes our own draft if a peer can read it, else the
    target's first layers."""
    modes: tuple[Mode, ...] = tuple(Mode)
    """Of our own systems; plain decoding is measured in any case."""
    target: str | None = None
    """A folder, a hub id or a GGUF file; None is the demo model."""
    temperatures: tuple[float, ...] = (0.0,)
    drafts: tuple[DraftChoice, ...] = (SHIPPED_DRAFTS,)
    num_rounds: int = 0
    """Rounds with models that cost nothing, by which the scheduler's own cost is measured; 0 leaves it out."""

    @property
    def target_source(self) -> str:
        """The target, wherever it was named."""
        return self.target or str(demo_weights())


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where the report goes, beside the screen."""

    file: Path | None
    folder: Path | None

    def write(self, report: str, draw: Callable[[Path], None]) -> None:
        """Write the report, and a plot beside it where a folder was named."""
        if self.file is not None:
            self.file.write_text(report + "\n", encoding="utf-8")
        if self.folder is not None:
            name = dated_name(self.folder, "bench")
            (self.folder / f"{name}.json").write_text(report + "\n", encoding="utf-8")
            draw(self.folder / f"{name}.png")


def parse_bench(arguments: Sequence[str] | None) -> tuple[BenchSettings, Output]:
    """Read a command line; ends the process with status 2 and one line where it asks for what cannot be."""
    parser = bench_parser()
    chosen = parser.parse_args(arguments)
    if (
        min(chosen.threads) < 1
        or not 1 <= chosen.prompts <= 6
        or chosen.max_tokens < _LEAST_TOKENS
        or chosen.rounds < 0
    ):
        parser.error(
            f"--threads must be at least 1, --prompts 1 to 6, --max-tokens at least {_LEAST_TOKENS}, --rounds 0 or more"
        )
    if chosen.lookup_tokens and not 1 <= min(chosen.lookup_tokens) <= max(chosen.lookup_tokens) <= _MOST_LOOKUP_TOKENS:
        parser.error(f"--lookup-tokens must be 1 to {_MOST_LOOKUP_TOKENS}")
    peers = () if chosen.no_peers else tuple(PeerName(name) for name in dict.fromkeys(chosen.peers))
    if 0 not in chosen.temperatures and peers:
        parser.error("the peers run at temperature 0 only: add 0 to --temperatures, or give --no-peers")
    if peers and chosen.max_tokens < (least := longest_block(peers, chosen.lookup_tokens) + 2):
        parser.error(
            f"--max-tokens must be at least {least} with these peers: one of them writes {least - 2} tokens in one "
            "step, and what is timed is the rest"
        )
    pairs = chosen.pairs or ([] if chosen.drafts else [Pair.DEMO])
    try:
        for temperature in chosen.temperatures:
            GenerationOptions(temperature=temperature)
        drafts = [DraftChoice.of_pair(Pair(name), chosen.target) for name in pairs]
        drafts += [DraftChoice.read(text) for text in chosen.drafts]
    except ValueError as error:
        parser.error(str(error))
    drafts = list(dict.fromkeys(drafts))
    labels = [choice.label for choice in drafts]
    settings = BenchSettings(
        threads=tuple(chosen.threads),
        weights=tuple(WeightKind(name) for name in chosen.weights),
        num_prompts=chosen.prompts,
        max_tokens=chosen.max_tokens,
        peers=peers,
        lookup_tokens=tuple(dict.fromkeys(chosen.lookup_tokens)),
        assistant=chosen.assistant,
        modes=tuple(mode for mode in Mode if mode is Mode.PLAIN or mode in chosen.modes),
        target=chosen.target,
        temperatures=tuple(dict.fromkeys(chosen.temperatures)),
        drafts=tuple(
            choice if labels.count(choice.label) == 1 else replace(choice, label="+".join(choice.sources))
            for choice in drafts
        ),
        num_rounds=chosen.rounds,
    )
    return settings, Output(file=chosen.out, folder=chosen.out_dir)


def bench_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m profiling.bench", description="Decoding speed, measured.")
    parser.add_argument("--target", help="folder, .gguf file or hub id (default: the demo weights)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="intra-op threads (default: 1 2)")
    parser.add_argument(
        "--weights",
        nargs="+",
        choices=[kind.value for kind in WeightKind],
        default=["float16", "int8"],
        help="weight kinds of our own systems (default: float16 int8)",
    )
    parser.add_argument(
        "--modes",
        nargs="+",
        choices=[mode.value for mode in Mode],
        default=[mode.value for mode in Mode],
        help="of our own systems, beside plain (default: all that the drafts have)",
    )
    parser.add_argument(
        "--temperatures",
        nargs="+",
        type=float,
        default=[0.0],
        metavar="T",
        help="every prompt is answered at each, with a seed of its own; by the peers only at 0 (default: 0)",
    )
    parser.add_argument(
        "--pairs",
        nargs="+",
        choices=[pair.value for pair in Pair],
        help="drafts for the target: those that ship, one that is never right, one as slow as the target; of all but "
        "the first only the auto mode runs (default: demo, unless there are --drafts)",
    )
    parser.add_argument(
        "--drafts",
        nargs="+",
        default=[],
        metavar="DRAFT",
        help="further drafts, as runtime's --draft names them, with commas between those that work together, as in: "
        "auto ngram DIR ngram,DIR",
    )
    parser.add_argument("--prompts", type=int, default=5, help="prompts of each kind, 1 to 6 (default: 5)")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens of each run (default: 96)")
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument(
        "--peers",
        nargs="+",
        choices=[peer.value for peer in MEASURED_PEERS],
        default=[peer.value for peer in MEASURED_PEERS],
        help="who is measured beside this project, where installed (default: all; pip install 'slipstream[bench]')",
    )
    beside.add_argument("--no-peers", action="store_true", help="measure this project alone")
    parser.add_argument(
        "--lookup-tokens",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="lengths of the peers' prompt lookup (default: for each peer the documented one, and 10)",
    )
    parser.add_argument(
        "--assistant",
        metavar="MODEL",
        help="folder or .gguf file of the model that proposes where a peer is assisted (default: our own draft if a "
        "peer can read it, else the target's first layers)",
    )
    parser.add_argument(
        "--rounds", type=int, default=1000, help="rounds with costless models, 0 for none (default: 1000)"
    )
    parser.add_argument("--out", type=new_file, help="also write the JSON to this file")
    parser.add_argument(
        "--out-dir",
        type=new_folder,
        metavar="DIR",
        help="write the JSON and a plot of every prompt's speed-up there, named by the date",
    )
    return parser
