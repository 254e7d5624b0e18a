"""What packed weights cost in quality: `python -m profiling.fidelity`.

Owns perplexity of each weight kind on real text, relative to float32. The texts are on every machine with Python: its
language reference in English, the source of a module, and this project's licence; others can be named.

Shape suffixes: T tokens of a block, R logit rows, V vocabulary.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from models import CausalModel, WeightKind, open_model
from models.demo import demo_weights
from profiling.machine import describe_machine, new_file
from profiling.program import run_program

_KINDS = (WeightKind.FLOAT32, WeightKind.FLOAT16, WeightKind.INT8)
"""What a CPU runs at a bearable speed."""
_WINDOW = 512
"""Tokens of each stretch of text; the cache starts empty for each."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """Perplexity of one weight kind on one text."""

    text: str
    weights: str
    num_tokens: int
    perplexity: float
    relative_to_float32: float | None


def default_texts() -> dict[str, str]:
    """Three kinds of text that come with Python or with this project."""
    import argparse as module
    from pydoc_data.topics import topics

    licence = Path(__file__).resolve().parent.parent / "LICENSE"
    texts = {
        "language reference": "\n\n".join(topics[name] for name in sorted(topics)),
        "source code": inspect.getsource(module),
    }
    if licence.exists():
        texts["licence"] = licence.read_text(encoding="utf-8")
    return texts


def mean_negative_log_likelihood(model: CausalModel, token_ids: Sequence[int], description: str) -> float:
    """Nats a token, each window of the text on its own."""
    total, count = 0.0, 0
    cache = model.new_cache(_WINDOW)
    width = min(model.max_block, 64)
    for start in tqdm(range(0, len(token_ids) - 1, _WINDOW), desc=description, disable=None, file=sys.stderr):
        window = torch.tensor(token_ids[start : start + _WINDOW])
        cache.rollback(0)
        for first in range(0, len(window) - 1, width):
            inputs_T = window[first : min(first + width, len(window) - 1)]
            logits_RV = model.forward(inputs_T, cache, num_logits=len(inputs_T))
            logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
            targets_R = window[first + 1 : first + 1 + len(inputs_T)]
            total -= float(logprobs_RV.gather(1, targets_R[:, None]).sum())
            count += len(inputs_T)
    return total / count


def measure(
    source: str | Path, texts: Mapping[str, str], kinds: Sequence[WeightKind], *, max_tokens: int
) -> list[Fidelity]:
    """Perplexity of every kind on every text; float32 comes first, as the base."""
    nats: dict[tuple[str, WeightKind], tuple[int, float]] = {}
    for kind in [WeightKind.FLOAT32, *(kind for kind in kinds if kind is not WeightKind.FLOAT32)]:
        with open_model(source, weights=kind) as opened:
            loaded = opened.load()
        for name, text in texts.items():
            token_ids = loaded.tokenizer.encode(text[: 8 * max_tokens])[:max_tokens]
            value = mean_negative_log_likelihood(loaded.model, token_ids, f"{kind.value}, {name}")
            nats[name, kind] = (len(token_ids), value)
    return [
        Fidelity(
            text=name,
            weights=kind.value,
            num_tokens=num_tokens,
            perplexity=math.exp(value),
            relative_to_float32=math.exp(value - nats[name, WeightKind.FLOAT32][1]),
        )
        for (name, kind), (num_tokens, value) in nats.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and print one line of JSON last."""
    parser = argparse.ArgumentParser(prog="python -m profiling.fidelity", description="Perplexity by weight kind.")
    parser.add_argument("texts", nargs="*", type=Path, help="text files (default: three texts at hand)")
    parser.add_argument("--target", help="folder, hub id or GGUF file (default: the demo model)")
    parser.add_argument("--max-tokens", type=int, default=4096, help="tokens of each text (default: 4096)")
    parser.add_argument("--out", type=new_file, help="also write the JSON to this file")
    chosen = parser.parse_args(arguments)
    if chosen.max_tokens < 2:
        parser.error("--max-tokens must be at least 2")
    try:
        texts = {str(path): path.read_text(encoding="utf-8") for path in chosen.texts} or default_texts()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"a text cannot be read: {error}")
    rows = measure(chosen.target or demo_weights(), texts, _KINDS, max_tokens=chosen.max_tokens)
    for row in rows:
        print(f"{row.text:20}  {row.weights:8}  {row.perplexity:8.3f}  x{row.relative_to_float32:.4f}")
    report = json.dumps({"machine": describe_machine(), "rows": [asdict(row) for row in rows]})
    if chosen.out is not None:
        chosen.out.write_text(report + "\n")
    print(report)
    return 0


if __name__ == "__main__":
    run_program(main)
