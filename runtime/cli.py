"""The command line: one answer, a comparison, or a conversation.

Owns the order of things, exit statuses and the event loop's choice. Knows nothing of how options are written or
answers are worded.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager

from models import silence_standard_output
from runtime.arguments import EXAMPLE, STANDARD_INPUT, Arguments, UsageError, parse_arguments
from runtime.chat import chat
from runtime.comparison import compare
from runtime.console import Console
from runtime.conversation import Conversation
from runtime.errors import SlipstreamError
from runtime.load_settings import Mode
from runtime.metrics_server import MetricsServer
from runtime.options import GenerationOptions
from runtime.report import comparison_table, json_record, summary
from runtime.result import GenerationResult
from runtime.runtime import Prompt, Runtime
from runtime.token_stream import TokenStream

DONE, FAILED, WRONG_USAGE, INTERRUPTED, READER_GONE = 0, 1, 2, 130, 141
"""Exit statuses; the last two are those of a shell's child that SIGINT and SIGPIPE ended."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, that of the process by default; returns the exit status.

    What is wrong with the usage, the input or the model becomes one line on standard error.
    """
    console = Console()
    try:
        arguments = parse_arguments(argv)
        prompt = _read_prompt(arguments)
        with console.warnings_shown():
            return _Session(arguments, console).run(prompt)
    except UsageError as error:
        console.error(error)
        return WRONG_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        silence_standard_output()
        return READER_GONE
    except (SlipstreamError, TypeError, ValueError, OSError, ImportError) as error:
        console.error(error)
        return FAILED


def _read_prompt(arguments: Arguments) -> str | None:
    """The text to ask; None begins a conversation without one.

    Raises:
        UsageError: if there is none, or standard input holds no text.
    """
    if arguments.chat or arguments.prompt not in (None, STANDARD_INPUT):
        return arguments.prompt
    if arguments.prompt is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError(f"no prompt; give one, as in: {EXAMPLE} (or --chat, or '{STANDARD_INPUT}' for standard input)")
    if sys.stdin is None:
        raise UsageError("standard input is closed, so there is no prompt to read from it")
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text: {error}") from error
    if not text.strip():
        raise UsageError(f"standard input holds no prompt; give one, as in: {EXAMPLE}")
    return text.removesuffix("\n").removesuffix("\r")


class _Session:
    """One runtime on one event loop, for as long as the command line wants it."""

    def __init__(self, arguments: Arguments, console: Console) -> None:
        self._arguments = arguments
        self._console = console
        self._event_loop, self._loop_factory = _event_loop(prefer_uvloop=arguments.uvloop)

    def run(self, prompt: str | None) -> int:
        """Load, answer, close; returns the exit status."""
        arguments, console = self._arguments, self._console
        # The port comes first: one that is taken is no news to wait for.
        with self._metrics_server() as server, asyncio.Runner(loop_factory=self._loop_factory) as runner:
            console.progress(f"loading {arguments.load.get('target', 'the demo model')} ...")
            runtime = runner.run(Runtime.load(**arguments.load))
            try:
                if server is not None:
                    server.collector.add(runtime)
                if arguments.chat:
                    return DONE if self._chat(runner, runtime, prompt) else FAILED
                work = self._compare if arguments.compare else self._answer
                runner.run(work(runtime, self._as_prompt(runtime, prompt or "")))
                return DONE
            finally:
                runner.run(runtime.close())

    @contextmanager
    def _metrics_server(self) -> Generator[MetricsServer | None, None, None]:
        port = self._arguments.metrics_port
        if port is None:
            yield None
            return
        with MetricsServer(port) as server:
            self._console.note(f"metrics: {server.url}")
            yield server

    def _as_prompt(self, runtime: Runtime, text: str) -> Prompt:
        if self._arguments.raw or (self._arguments.system is None and not runtime.tokenizer.has_chat_template):
            return text
        conversation = Conversation(runtime, system=self._arguments.system)
        return [*conversation.messages, {"role": "user", "content": text}]

    def _chat(self, runner: asyncio.Runner, runtime: Runtime, first: str | None) -> bool:
        conversation = Conversation(runtime, system=self._arguments.system)

        async def reply(message: str) -> None:
            options = self._arguments.options.resolved()
            result = await self._show(conversation.send(message, **options.as_dict()))
            self._report(runtime, result, options)

        return chat(runner, conversation, reply, self._console, first=first)

    async def _answer(self, runtime: Runtime, prompt: Prompt) -> None:
        options = self._arguments.options.resolved()
        result = await self._show(runtime.stream(prompt, **options.as_dict()))
        self._report(runtime, result, options)

    async def _compare(self, runtime: Runtime, prompt: Prompt) -> None:
        console = self._console
        # Resolved once: all modes draw from the same noise.
        options = self._arguments.options.resolved()
        keywords = options.as_dict()

        async def generate(mode: Mode) -> GenerationResult:
            return await runtime.generate(prompt, **{**keywords, "mode": mode})

        async def show(mode: Mode) -> GenerationResult:
            if not self._arguments.json:
                console.result(f"--- {mode.value} ---")
            return await self._show(runtime.stream(prompt, **{**keywords, "mode": mode}))

        comparison = await compare(generate, runtime.modes, warm_up=show)
        if self._arguments.json:
            console.result(
                json_record(
                    comparison.result,
                    runtime.description,
                    options,
                    event_loop=self._event_loop,
                    comparison=comparison,
                    totals=runtime.metrics,
                )
            )
        else:
            console.result(f"--- comparison ---\n{comparison_table(comparison, options)}")

    async def _show(self, stream: AbstractAsyncContextManager[TokenStream]) -> GenerationResult:
        try:
            async with stream as chunks:
                async for chunk in chunks:
                    if not self._arguments.json:
                        self._console.write(chunk.text)
        finally:
            self._console.end_text()
        return chunks.result

    def _report(self, runtime: Runtime, result: GenerationResult, options: GenerationOptions) -> None:
        if self._arguments.json:
            line = json_record(
                result, runtime.description, options, event_loop=self._event_loop, totals=runtime.metrics
            )
            self._console.result(line)
        else:
            self._console.note(summary(result, runtime.description))


def _event_loop(*, prefer_uvloop: bool) -> tuple[str, Callable[[], asyncio.AbstractEventLoop] | None]:
    """Name and factory of the event loop; uvloop is no requirement, and there is none for Windows."""
    # uvloop aborts the process where one of its own descriptors gets the number of a standard stream that was closed.
    if prefer_uvloop and None not in (sys.stdin, sys.stdout, sys.stderr):
        try:
            import uvloop
        except ImportError:
            pass
        else:
            return "uvloop", uvloop.new_event_loop
    return "asyncio", None
