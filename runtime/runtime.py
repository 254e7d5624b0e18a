"""The public entrance: load a pair once, then generate and stream.

Owns a runtime's life and the order of its requests. Knows nothing of streams, lanes or kernels.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from models import Tokenizer
from runtime.assembly import build_engine
from runtime.description import RuntimeDescription
from runtime.engine import Engine
from runtime.errors import ContextLengthError, RuntimeClosedError, StreamClosedError
from runtime.load_settings import LoadSettings, Mode
from runtime.metrics import Metrics, MetricsRecorder
from runtime.options import GenerationKeywords, GenerationOptions
from runtime.request_queue import RequestQueue
from runtime.result import Chunk, GenerationResult
from runtime.runtime_metrics import RuntimeMetrics, RuntimeRecorder
from runtime.token_stream import TokenStream
from runtime.transcript import Transcript
from scheduler import AcceptanceMonitor, DecodeRequest, FinishReason, Markers, Occupancy, Recording

Message = Mapping[str, object]
Prompt = str | Sequence[int] | Sequence[Message]


class Runtime:
    """One target with its drafts, serving one request at a time in the order of the calls.

        async with await Runtime.load() as runtime:
            result = await runtime.generate("The capital of France is", max_tokens=16)

    Usable from any event loop, one after the other or several at once.
    """

    def __init__(self, engine: Engine, settings: LoadSettings) -> None:
        """Wrap a loaded engine; `Runtime.load` is the usual way."""
        self._engine = engine
        self._settings = settings
        self._queue = RequestQueue()
        # Who named no draft can do nothing about it, and what does not pay is proposed less and less.
        threshold = 0.0 if settings.chooses_draft else settings.acceptance_threshold
        self._totals = RuntimeRecorder(
            engine.draft_names,
            model_sources=engine.model_sources,
            monitor=AcceptanceMonitor(threshold=threshold),
        )
        self._closed = False

    @classmethod
    async def load(cls, target: str | Path | None = None, **options: Any) -> Runtime:
        """Load a target and its drafts; `LoadSettings` explains the options.

        A load that is cancelled ends when its worker is through: torch cannot be stopped in the middle.

        Raises:
            TypeError, ValueError: for options of the wrong name, type or value.
            SlipstreamError: if a model cannot be loaded or paired.
        """
        settings = LoadSettings.from_keywords({"target": target, **options})
        return cls(await build_engine(settings), settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let the request that runs finish its round, refuse all others, and end the workers; idempotent."""
        self._closed = True
        await self._engine.close()

    @property
    def settings(self) -> LoadSettings:
        """The settings as they were asked for; `description` tells what came of them."""
        return self._settings

    @property
    def description(self) -> RuntimeDescription:
        """What is loaded and how it runs."""
        engine, settings = self._engine, self._settings
        pipelined = settings.mode.overlaps
        return RuntimeDescription(
            target=engine.target.model.name,
            draft=engine.draft_names,
            mode=settings.mode,
            gamma=settings.gamma,
            max_gamma=settings.gamma_limit,
            max_lead=settings.max_lead if pipelined else 0,
            num_awaited=settings.num_awaited if pipelined else None,
            warmup_tokens=settings.warmup_tokens,
            weights=engine.weights,
            threads=engine.num_threads,
            draft_threads=engine.num_draft_threads,
            context_length=self.context_length,
            device=str(engine.target.model.device),
        )

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What requests may ask for: the mode of the settings, and the simpler ones."""
        return self._engine.modes

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""
        return self._engine.tokenizer

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and output together."""
        return self._engine.target.capacity

    @property
    def occupancy(self) -> Occupancy:
        """How full the GPU is that it runs on; what is unknown is None with a reason. Never blocks."""
        return self._engine.occupancy()

    def start_recording(self, markers: Markers | None = None) -> None:
        """Record every launch and round from now on; to be called between requests.

        What it costs, some microseconds a launch, only a runtime pays that is recording.

        Args:
            markers: who else hears of each launch and round at once; `scheduler.nvtx_markers()` tells NVIDIA's
                profilers.

        Raises:
            RuntimeError: if it is recording already, or a request is running.
            RuntimeClosedError: if the runtime was closed.
        """
        if self._closed:
            raise RuntimeClosedError("this runtime was closed; load a new one")
        if self._queue.num_running:
            raise RuntimeError("a request is running; start recording before it, or when it has ended")
        self._engine.spans.start(markers)

    async def stop_recording(self) -> Recording:
        """What was recorded, once both lanes are through with what they were told to do.

        Raises:
            RuntimeError: if it is not recording.
        """
        return await self._engine.stop_recording()

    @property
    def acceptance_rate(self) -> float | None:
        """Rolling acceptance rate of the draft model over recent requests; None before it proposed anything."""
        return self._totals.acceptance_rate

    @property
    def metrics(self) -> RuntimeMetrics:
        """What all requests together came to since the load; from any thread, at any time, and never blocks."""
        engine = self._engine
        return RuntimeMetrics(
            **self._totals.figures(),
            model_name=engine.target.model.name,
            max_gamma=self._settings.gamma_limit,
            num_requests_running=self._queue.num_running,
            num_requests_waiting=len(self._queue),
            num_cache_tokens=engine.target.num_held,
            cache_capacity=self.context_length,
            occupancy=None if engine.probe is None else engine.occupancy(),
        )

    async def generate(self, prompt: Prompt, **options: Unpack[GenerationKeywords]) -> GenerationResult:
        """Generate a whole output.

        Args:
            prompt: text, token ids, or chat messages (`{"role": ..., "content": ...}`).
            **options: see `GenerationOptions`.

        Raises:
            TypeError, ValueError: for a bad prompt or option.
            ContextLengthError: if the prompt leaves no room in the context.
            RuntimeClosedError: if the runtime was closed.
        """
        chunks = self._chunks(prompt, self._checked(options))
        try:
            return GenerationResult.from_chunks([chunk async for chunk in chunks])
        finally:
            await chunks.aclose()

    def stream(self, prompt: Prompt, **options: Unpack[GenerationKeywords]) -> TokenStream:
        """Generate chunk by chunk, one a round; use as `async with`, so that leaving it stops the work.

        Raises:
            as `generate`: options at once, the rest on entering or reading.
        """
        return TokenStream(self._chunks(prompt, self._checked(options)))

    def _checked(self, options: Mapping[str, Any]) -> GenerationOptions:
        if self._closed:
            raise RuntimeClosedError("this runtime was closed; load a new one")
        if options.get("verification") is None and self._settings.verification is not None:
            options = {**options, "verification": self._settings.verification}
        checked = GenerationOptions.from_keywords(options)
        loaded = self._settings.mode
        if checked.mode is not None and checked.mode not in self.modes:
            allowed = " or ".join(repr(mode.value) for mode in self.modes)
            raise ValueError(
                f"mode must be {allowed} on a runtime that was loaded as {loaded.value!r}, got {checked.mode.value!r}; "
                f"load it with mode={checked.mode.value!r}, which serves simpler ones too"
            )
        limit = self._settings.gamma_limit
        if checked.gamma is not None and checked.gamma > limit:
            raise ValueError(
                f"gamma must be at most {limit} on this runtime, got {checked.gamma}; load it with "
                f"max_gamma={checked.gamma} and adaptive gamma, which serves smaller ones too"
            )
        if checked.gamma and (checked.mode or loaded) is Mode.PLAIN:
            raise ValueError(
                f"gamma must be 0 or left out with mode 'plain', which proposes nothing, got {checked.gamma}"
            )
        if checked.gamma and not self._engine.proposers:
            raise ValueError(f"gamma must be 0 or left out on a runtime without a draft, got {checked.gamma}; load one")
        return checked

    async def _chunks(self, prompt: Prompt, options: GenerationOptions) -> AsyncGenerator[Chunk, None]:
        recorder = MetricsRecorder(self._engine.draft_names, draft_timed=self._engine.draft_timed, totals=self._totals)
        with recorder.outcome_noted():
            async with self._queue.turn():
                # Encoded in turn, so that a short prompt does not overtake a long one.
                request = self._request(await self._encode(prompt), options)
                if self._closed:
                    raise RuntimeClosedError("this runtime was closed while the request waited; load a new one")
                recorder.start()
                try:
                    with self._engine.watched_work() as look:
                        async with aclosing(self._decode(request, options, recorder)) as chunks:
                            async for chunk in chunks:
                                look()
                                yield chunk
                except StreamClosedError as error:
                    raise RuntimeClosedError("this runtime was closed while the request ran; load a new one") from error

    async def _decode(
        self, request: DecodeRequest, options: GenerationOptions, recorder: MetricsRecorder
    ) -> AsyncGenerator[Chunk, None]:
        """The chunks of a request whose turn has come."""
        mode = options.mode or self._settings.mode
        loop = self._engine.loop(mode)
        recorder.add_prefill(await loop.prefill(request))
        transcript = Transcript(self.tokenizer, options.stop, include_stop=options.include_stop_str_in_output)
        async with aclosing(loop.rounds(request)) as rounds:
            async for report in rounds:
                piece = transcript.push(report.token_ids, last=report.finish_reason is not None)
                recorder.add_round(report, piece.num_tokens)
                finish_reason = FinishReason.STOP if piece.stopped else report.finish_reason
                if finish_reason is not None:
                    recorder.finish(finish_reason)
                yield Chunk(
                    text=piece.text,
                    token_ids=report.token_ids[: piece.num_tokens],
                    logprobs=report.logprobs[: piece.num_tokens],
                    finish_reason=finish_reason,
                    num_draft_tokens=report.num_proposed,
                    num_accepted_draft_tokens=min(report.num_accepted, piece.num_tokens),
                    metrics=None if finish_reason is None else self._metrics(recorder, mode),
                )
                if finish_reason is not None:
                    return

    def _metrics(self, recorder: MetricsRecorder, mode: Mode) -> Metrics:
        reason = self._engine.explain(mode)
        if mode is Mode.AUTO and self._engine.proposers:
            reason = f"{recorder.rounds_in_words()}; at the end: {reason}"
        return recorder.snapshot(acceptance_low=self._totals.acceptance_low, decision=reason)

    async def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of any kind of prompt, off the event loop: a long text takes milliseconds."""
        vocab_size = self._engine.target.model.vocab_size
        if isinstance(prompt, str):
            return _checked_ids(await asyncio.to_thread(self.tokenizer.encode, prompt), vocab_size)
        if isinstance(prompt, (bytes, bytearray, memoryview, Mapping)) or not isinstance(prompt, Sequence):
            raise TypeError(f"prompt must be text, token ids or chat messages, not {type(prompt).__name__}")
        messages = [item for item in prompt if isinstance(item, Mapping)]
        if messages and len(messages) == len(prompt):
            return _checked_ids(await asyncio.to_thread(self.tokenizer.encode_chat, messages), vocab_size)
        return _checked_ids(prompt, vocab_size)

    def _request(self, prompt_ids: tuple[int, ...], options: GenerationOptions) -> DecodeRequest:
        if not prompt_ids:
            start = self.tokenizer.bos_token_id
            raise ValueError(
                "prompt is empty, and a model can only continue something; give at least one token"
                + ("" if start is None else f", such as the beginning-of-text token [{start}]")
            )
        if len(prompt_ids) >= self.context_length:
            raise ContextLengthError(
                f"prompt has {len(prompt_ids)} tokens and leaves no room in a context of {self.context_length}; "
                "shorten it, or load with a larger context_length if the model allows one"
            )
        vocab_size = self._engine.target.model.vocab_size
        _check_known("stop_token_ids", options.stop_token_ids, vocab_size)
        _check_known("logit_bias", options.logit_bias, vocab_size)
        eos_ids = frozenset[int]() if options.ignore_eos else self.tokenizer.eos_token_ids
        return DecodeRequest(
            prompt_ids=prompt_ids,
            settings=options.sampling_settings(),
            max_tokens=options.max_tokens,
            stop_ids=eos_ids | frozenset(options.stop_token_ids),
            num_logprobs=options.logprobs,
            gamma=options.gamma,
        )


def _checked_ids(prompt: Sequence[object], vocab_size: int) -> tuple[int, ...]:
    token_ids = []
    for index, token_id in enumerate(prompt):
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise TypeError(
                f"prompt[{index}] must be a token id (or all items chat messages), not {type(token_id).__name__}"
            )
        if not 0 <= token_id < vocab_size:
            raise ValueError(
                f"prompt[{index}] must be a token id of the target, at least 0 and below {vocab_size}, got {token_id}"
            )
        token_ids.append(token_id)
    return tuple(token_ids)


def _check_known(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise ValueError(f"{name} names token id {token_id}, but the target's ids end below {vocab_size}")
