"""Where a training run stands, in one file that is whole or absent.

Owns the file's layout and its exactness: a run that goes on from it computes the same bits as one that was never
interrupted, on the same machine. Knows nothing of how a step is taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from models.distill.settings import TrainingSettings
from models.errors import CheckpointError
from models.user_cache import write_atomically

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class HistoryPoint:
    """One evaluation on the way."""

    step: int
    num_tokens: int
    """Seen so far, each as often as it was seen."""
    loss: float | None
    """Mean since the evaluation before; None at the first."""
    held_out_acceptance: tuple[float, ...]
    """Mean of sum min(p, q) for each of the draft's own steps."""
    trained_s: float


@dataclass(kw_only=True)
class RunState:
    """Everything that a run needs to go on."""

    num_steps: int
    """Over which the learning rate falls; found once, then kept."""
    step: int = 0
    trained_s: float = 0.0
    history: list[HistoryPoint] = field(default_factory=list)
    best_step: int = 0
    best: dict[str, torch.Tensor] = field(default_factory=dict)
    """Parameters at the best evaluation."""

    @property
    def best_acceptance(self) -> float:
        """What the best evaluation came to; 0 before the first."""
        return max((score(point.held_out_acceptance) for point in self.history), default=0.0)

    @property
    def num_without_gain(self) -> int:
        """Evaluations since the best one."""
        return sum(point.step > self.best_step for point in self.history)


def score(acceptance: tuple[float, ...]) -> float:
    """Tokens a round brings if it proposes as many as were judged: what evaluations are compared by."""
    total, alive = 0.0, 1.0
    for rate in acceptance:
        alive *= rate
        total += alive
    return total


def save_state(
    path: Path,
    state: RunState,
    settings: TrainingSettings,
    parameters: Mapping[str, torch.Tensor],
    optimiser: torch.optim.Optimizer,
    *,
    text: Mapping[str, object],
) -> None:
    """Replace the file.

    Args:
        path: of the file.
        state: of the run.
        settings: of the run.
        parameters: by name, in the optimiser's order.
        optimiser: whose moments are kept.
        text: what the text was, to be found the same when the run goes on.

    Raises:
        CheckpointError: if it cannot be written; the one before is still there.
    """
    tensors = {f"parameter.{name}": tensor.detach() for name, tensor in parameters.items()}
    tensors |= {f"best.{name}": tensor for name, tensor in state.best.items()}
    for name, parameter in parameters.items():
        for moment, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = torch.as_tensor(value)
    record = {
        "num_steps": state.num_steps,
        "step": state.step,
        "trained_s": state.trained_s,
        "best_step": state.best_step,
        "history": [asdict(point) for point in state.history],
        "settings": _plain(settings),
        "text": dict(text),
    }
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"run": json.dumps(record)})
    try:
        write_atomically(path, content)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror or error}; the checkpoint before is kept: make room and run the "
            "same command again"
        ) from error


def load_state(
    path: Path,
    settings: TrainingSettings,
    parameters: Mapping[str, torch.Tensor],
    optimiser: torch.optim.Optimizer,
    *,
    text: Mapping[str, object],
) -> RunState:
    """Read the file into parameters and optimiser.

    Raises:
        CheckpointError: if it is damaged.
        ValueError: if it is of other settings or other text.
    """
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads(file.metadata()["run"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        for name, found, wanted in [
            *((name, record["settings"].get(name), value) for name, value in _plain(settings).items()),
            *((f"text's {name}", record["text"].get(name), value) for name, value in text.items()),
        ]:
            if found != wanted:
                raise ValueError(
                    f"{path} is of a run with {name} {found!r}, and this one asks for {wanted!r}; use another folder, "
                    "or the same settings"
                )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors[f"parameter.{name}"])
                if f"step.{name}" in tensors:
                    # The number of steps stays on the CPU wherever the parameter is, as the optimiser has it.
                    optimiser.state[parameter] = {
                        "step": tensors[f"step.{name}"].clone(),
                        **{moment: tensors[f"{moment}.{name}"].to(parameter.device, copy=True) for moment in _MOMENTS},
                    }
        history = [
            HistoryPoint(**{**point, "held_out_acceptance": tuple(point["held_out_acceptance"])})
            for point in record["history"]
        ]
        return RunState(
            num_steps=record["num_steps"],
            step=record["step"],
            trained_s=record["trained_s"],
            history=history,
            best_step=record["best_step"],
            best={
                name.removeprefix("best."): tensor.clone()
                for name, tensor in tensors.items()
                if name.startswith("best.")
            },
        )
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); delete it, and training begins anew with the text that is there"
        ) from error


def _plain(settings: TrainingSettings) -> dict[str, object]:
    """What decides a run's bits, as JSON holds it."""
    plain: dict[str, object] = json.loads(json.dumps(asdict(settings), default=lambda value: value.value))
    return plain
