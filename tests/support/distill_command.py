"""The command line of a distillation that takes a few seconds."""

from __future__ import annotations

from pathlib import Path

OPTIONS = ("--tokens", "5000", "--sequence-length", "24", "--wave", "36", "--epochs", "2", "--batch", "8")
OPTIONS += ("--kinds", "chat", "text", "--head-tokens", "100", "--own-steps", "2", "--workers", "1", "--device", "cpu")


def command(target: Path, text: Path, out: Path, *more: str) -> list[str]:
    return ["--target", str(target), "--out", str(out), "--text", str(text), *OPTIONS, *more]
