"""The command line of `python -m profiling.trace`.

Owns the order of things: under nsys, or with a Chrome trace instead; what is said about it, and the exit status. Knows
nothing of how a trace is made.

Exit status: 0 if the trace was seen, 1 if the pair cannot be loaded or nothing can be written, 2 for wrong usage, 130
if interrupted; where nsys failed, its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from models import BaseConsole, SlipstreamError, write_atomically
from profiling.machine import describe_machine
from profiling.trace import nsys
from profiling.trace.arguments import NO_CONTENTION, StreamKind, TraceArguments, parse_arguments
from profiling.trace.capture import Capture, TracedPair
from profiling.trace.chrome_events import encode_trace
from profiling.trace.chrome_trace import chrome_events
from profiling.trace.picture import check_picture, draw_recording
from profiling.trace.preface import preface, streams_as_dict
from profiling.trace.summary_text import format_summary
from profiling.trace.torch_trace import torch_profiled, write_torch_trace
from profiling.trace.whole_file import whole_file
from runtime import GenerationResult
from scheduler import Markers, NoMarkers, nvtx_markers

DONE, FAILED = 0, 1
FIGURES = "figures"
"""The field of the last line that holds the summary."""

_VIEWER = "https://ui.perfetto.dev"


class CannotTrace(Exception):
    """There is no trace; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Trace one request; returns the exit status.

    Raises:
        SlipstreamError: if the pair cannot be loaded, or does not take the prompt.
        KeyboardInterrupt: if interrupted; nsys and what runs under it have ended then.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    chosen = parse_arguments(given)
    console = BaseConsole()
    program = _Program(chosen, given, console)
    try:
        with console.warnings_shown():
            program.run()
    except nsys.NsysError as error:
        console.error(error)
        return error.status
    except CannotTrace as error:
        console.error(error)
        return FAILED
    return DONE


class _Program:
    def __init__(self, chosen: TraceArguments, given: Sequence[str], console: BaseConsole) -> None:
        self._chosen = chosen
        self._given = given
        self._console = console

    def run(self) -> None:
        chosen = self._chosen
        if chosen.print_command:
            self._print_command()
            return
        if chosen.picture is not None:
            # Now, not after a minute of loading.
            _check_drawable(chosen.picture)
        if chosen.under_nsys:
            self._run_under_nsys()
        elif (obstacle := self._obstacle()) is None:
            self._call_nsys()
        else:
            if not chosen.no_nsys:
                self._console.note(f"{obstacle}; a Chrome trace goes to {chosen.chrome_path} instead")
            self._write_chrome_trace()

    def _obstacle(self) -> str | None:
        """Why nsys is not called; None where it is."""
        chosen = self._chosen
        if chosen.no_nsys:
            return "--no-nsys was given"
        if not nsys.is_installed():
            return "nsys is not on PATH"
        if chosen.settings.device == "cpu":
            return "nsys is for GPUs, and the pair runs on the CPU"
        if not torch.cuda.is_available():
            return "nsys is for GPUs, and there is none that torch can use"
        if chosen.torch:
            return "torch's profiler and nsys cannot watch at the same time"
        return None

    def _command(self) -> list[str]:
        chosen = self._chosen
        return nsys.nsys_command(self._given, chosen.report_path, cuda_graph_trace=chosen.cuda_graph_trace)

    def _print_command(self) -> None:
        self._note_missing_nvtx()
        if not nsys.is_installed():
            self._console.note("nsys is not on PATH: install Nsight Systems before this line can run")
        self._console.result(shlex.join(self._command()))

    def _call_nsys(self) -> None:
        chosen, console = self._chosen, self._console
        self._note_missing_nvtx()
        figures: dict[str, Any] = {}

        def take(line: str) -> None:
            if (found := _json_object(line)) is not None and FIGURES in found:
                figures.update(found)
            else:
                console.result(line)

        report = nsys.run_nsys(self._command(), chosen.report_path, on_line=take if chosen.json else None)
        console.result(f"\ntrace: {_seen(report)}")
        console.result(f"open it with: {shlex.join(['nsys-ui', str(report)])}")
        console.result(f"or in figures: {shlex.join(['nsys', 'stats', str(report)])}")
        self._print_json({**figures, "trace": str(report), "format": "nsys"})

    def _note_missing_nvtx(self) -> None:
        if isinstance(nvtx_markers(), NoMarkers):
            self._console.note(
                "nvtx is not installed, so the report will have no ranges of rounds and launches; for these: "
                "pip install 'slipstream[trace]'"
            )

    def _run_under_nsys(self) -> None:
        if not torch.cuda.is_available():
            raise CannotTrace("nsys collects between calls of CUDA's profiler, and torch has no GPU here to call it on")
        machine = describe_machine()
        # Its functions carry no annotations.
        profiler: Any = torch.cuda.profiler
        capture = self._record(markers=nvtx_markers(), watched=profiler.profile())
        self._print_summary(capture)
        self._print_json({**self._figures(capture), "machine": machine, **self._draw(capture)})

    def _write_chrome_trace(self) -> None:
        chosen, console = self._chosen, self._console
        # Before anything runs, so that the load is the machine's and not ours.
        machine = describe_machine()
        capture = self._record()
        # Before anything is said, which may fail where nobody listens.
        with _writing(chosen.chrome_path):
            write_atomically(chosen.chrome_path, self._chrome_file(capture, machine))
        self._print_summary(capture)
        console.result(f"\ntrace: {_seen(chosen.chrome_path)}")
        console.result(f"open it in {_VIEWER} or chrome://tracing")
        paths = {"trace": str(chosen.chrome_path), "format": "chrome", **self._draw(capture)}
        if capture.profiled is not None:
            paths["torch_trace"] = str(chosen.torch_path)
            cost = _cost_in_words(capture.result, capture.profiled)
            console.result(f"torch's trace, to be opened likewise: {_seen(chosen.torch_path)}; {cost}")
        self._print_json({**self._figures(capture), "machine": machine, **paths})

    def _print_summary(self, capture: Capture) -> None:
        chosen = self._chosen
        device = capture.description.device
        for sentence in preface(chosen.streams, chosen.contention, device, capture.recording):
            self._console.result(sentence + "\n")
        self._console.result(format_summary(capture.summary))

    def _streams(self, capture: Capture) -> dict[str, object]:
        return streams_as_dict(self._chosen.streams, self._chosen.contention, capture.description.device)

    def _figures(self, capture: Capture) -> dict[str, object]:
        pair = capture.description.as_dict()
        return {FIGURES: capture.summary.as_dict(), "pair": pair, **self._streams(capture)}

    def _chrome_file(self, capture: Capture, machine: Mapping[str, object]) -> bytes:
        chosen, description = self._chosen, capture.description
        streams = self._streams(capture)
        events = chrome_events(
            capture.recording,
            process_name=f"{description.target}, {description.mode.value}" + ", simulated" * bool(streams["simulated"]),
            source_names=description.draft,
            readings=capture.readings,
        )
        about = {
            "pair": description.as_dict(),
            **streams,
            "prompt": chosen.prompt,
            "max_tokens": chosen.max_tokens,
            "text": capture.result.text,
            "machine": machine,
            "missing_counters": capture.readings.missing(),
            "num_dropped": capture.recording.num_dropped,
            FIGURES: capture.summary.as_dict(),
        }
        return encode_trace(events, about, compressed=chosen.chrome_path.suffix == ".gz")

    def _draw(self, capture: Capture) -> dict[str, str]:
        """Draw some rounds where that was asked for; returns where they are, by the name in JSON."""
        path = self._chosen.picture
        if path is None:
            return {}
        try:
            with _writing(path), whole_file(path) as unfinished:
                first, last = draw_recording(
                    capture.recording, unfinished, rounds=self._chosen.rounds, title=self._title(capture)
                )
        except ValueError as error:
            raise CannotTrace(f"{path} cannot be drawn: {error}") from error
        self._console.result(f"picture of rounds {first} to {last}: {_seen(path)}")
        return {"picture": str(path)}

    def _title(self, capture: Capture) -> str:
        pair, chosen = capture.description, self._chosen
        title = f"{pair.target} with {' and '.join(pair.draft) or 'no draft'}, {pair.mode.value}"
        if chosen.streams is not StreamKind.VIRTUAL:
            return title
        contention = (
            "" if chosen.contention == NO_CONTENTION else f", {chosen.contention:g} times as long beside another"
        )
        return f"{title}, on virtual streams{contention}"

    def _record(
        self, *, markers: Markers | None = None, watched: AbstractContextManager[object] | None = None
    ) -> Capture:
        return asyncio.run(self._load_and_record(markers, watched))

    async def _load_and_record(
        self, markers: Markers | None, watched: AbstractContextManager[object] | None
    ) -> Capture:
        chosen = self._chosen
        with _stages("loading") as begin:
            with _told_in_one_line():
                virtual = chosen.streams is StreamKind.VIRTUAL
                pair = await TracedPair.load(chosen.settings, contention=chosen.contention if virtual else None)
            try:
                with _told_in_one_line():
                    begin("warming up")
                    await pair.warm_up()
                    begin("recording")
                    capture = await pair.capture(chosen.prompt, chosen.max_tokens, markers=markers, watched=watched)
                if chosen.torch:
                    begin("once more, under torch's profiler")
                    with _told_in_one_line(), torch_profiled() as profiler:
                        profiled = await pair.answer(chosen.prompt, chosen.max_tokens)
                    with _writing(chosen.torch_path):
                        write_torch_trace(profiler, chosen.torch_path)
                    capture = dataclasses.replace(capture, profiled=profiled)
            finally:
                await pair.close()
        return capture

    def _print_json(self, record: Mapping[str, object]) -> None:
        if self._chosen.json:
            self._console.result(json.dumps(record))


def _cost_in_words(alone: GenerationResult, profiled: GenerationResult) -> str:
    before_ms, after_ms = alone.metrics.tpot_ms, profiled.metrics.tpot_ms
    if before_ms is None or after_ms is None:
        return "noting every operator takes time, so read shares off it, not times"
    return (
        f"under that profiler a token took {after_ms:.1f} ms instead of {before_ms:.1f}, "
        f"{after_ms / before_ms:.1f} times as long, so read shares off it, not times"
    )


@contextmanager
def _stages(first: str) -> Generator[Callable[[str], None], None, None]:
    """Show what is going on; what it yields begins the next stage. Nothing is drawn while a stage runs."""
    with tqdm(total=0, desc=first, bar_format="{desc} ...", disable=None, file=sys.stderr, leave=False) as progress:
        yield progress.set_description_str


def _check_drawable(path: Path) -> None:
    try:
        check_picture(path)
    except ValueError as error:
        raise CannotTrace(str(error)) from error


@contextmanager
def _told_in_one_line() -> Generator[None, None, None]:
    """What model and device raise ends the program in one line: what they do not have, or no memory left."""
    try:
        yield
    except SlipstreamError:
        raise
    except (TypeError, ValueError, RuntimeError, OSError) as error:
        raise CannotTrace(str(error) or type(error).__name__) from error


@contextmanager
def _writing(path: Path) -> Generator[None, None, None]:
    """What keeps a file from being written ends the program in one line."""
    try:
        yield
    except OSError as error:
        raise CannotTrace(f"{path} cannot be written: {error.strerror or error}") from error


def _seen(path: Path) -> str:
    """A file and its size, from looking at it.

    Raises:
        CannotTrace: if it is not there.
    """
    try:
        num_bytes = path.stat().st_size
    except OSError as error:
        raise CannotTrace(f"{path} was written and is not there: {error.strerror}") from error
    return f"{path} ({num_bytes / 1e3:,.0f} kB)"


def _json_object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
