"""How a runtime answers for a cell.

Owns the options of the requests, and what is kept of a stream of chunks. Knows nothing of the order of runs.

One runtime serves all cells, on the same weights: a request names its mode and its gamma. Every answer has the same
length, as ends of sequence are ignored, and the same seed in every cell, so all must be identical. The prompt was read
before; the time to the first token is kept, but no figure rests on it.
"""

from __future__ import annotations

from profiling.prompts import BenchPrompt, PromptKind, bench_prompts, prompt_ids
from profiling.sweep.run import Cell, Round, SweepRun, Turn
from profiling.sweep.settings import SweepSettings
from profiling.sweep.turns import sweep_cells, sweep_turns
from runtime import Chunk, ContextLengthError, Runtime

_WARM_UP = BenchPrompt(
    kind=PromptKind.CHAT, messages=({"role": "user", "content": "Name seven rivers and the seas that they reach."},)
)


class Answerer:
    """Asks one runtime in all ways."""

    def __init__(self, runtime: Runtime, settings: SweepSettings) -> None:
        """Bind the runtime.

        Raises:
            ContextLengthError: if a prompt and its answer do not fit the context.
        """
        self._runtime = runtime
        self._settings = settings
        # Two of the longest rounds, which settings leave room for.
        self._num_short = 2 * (settings.max_gamma + 1)
        for turn in sweep_turns(settings):
            num_prompt_tokens = len(prompt_ids(runtime.tokenizer, _prompt(turn).messages))
            if num_prompt_tokens + settings.max_tokens > runtime.context_length:
                raise ContextLengthError(
                    f"the context of {runtime.context_length} tokens has no room for {settings.max_tokens} behind "
                    f"prompt {turn.prompt + 1} of kind {turn.kind}, which has {num_prompt_tokens}; "
                    "give fewer --max-tokens, or other --kinds"
                )

    async def warm_up(self) -> None:
        """Let every cell answer once, with a prompt that is not measured."""
        turn = sweep_turns(self._settings)[0]
        for cell in sweep_cells(self._settings):
            await self._ask(_WARM_UP, turn, cell, self._num_short)

    async def read(self, turn: Turn) -> None:
        """Have target and draft read a prompt, so that no cell is the first to do so."""
        for mode in self._settings.modes:
            cell = Cell(mode=mode, gamma=self._settings.gammas[-1])
            await self._ask(_prompt(turn), turn, cell, self._num_short)

    async def answer(self, turn: Turn, cell: Cell) -> SweepRun:
        """One run.

        Raises:
            ValueError: if the output came in one round, which gives no time.
        """
        max_tokens = self._settings.max_tokens
        chunks = await self._ask(_prompt(turn), turn, cell, max_tokens)
        metrics = chunks[-1].metrics
        if metrics is None or metrics.tpot_ms is None or metrics.ttft_ms is None:
            raise ValueError(f"{cell.name}: an output of {max_tokens} tokens came in one round; ask for more")
        return SweepRun(
            turn=turn,
            cell=cell,
            tpot_ms=metrics.tpot_ms,
            ttft_ms=metrics.ttft_ms,
            token_ids=tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
            rounds=tuple(
                Round(len(chunk.token_ids), chunk.num_draft_tokens, chunk.num_accepted_draft_tokens) for chunk in chunks
            ),
        )

    async def _ask(self, prompt: BenchPrompt, turn: Turn, cell: Cell, max_tokens: int) -> list[Chunk]:
        async with self._runtime.stream(
            prompt_ids(self._runtime.tokenizer, prompt.messages),
            max_tokens=max_tokens,
            ignore_eos=True,
            temperature=turn.temperature,
            seed=turn.seed,
            mode=cell.mode,
            gamma=cell.gamma,
        ) as chunks:
            return [chunk async for chunk in chunks]


def _prompt(turn: Turn) -> BenchPrompt:
    return bench_prompts(turn.kind)[turn.prompt]
