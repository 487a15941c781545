"""Statistics per parameter, and writers of them: TensorBoard, W&B, or a function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class ParameterStats(NamedTuple):
    """Statistics of one parameter in one step, over all ranks: the same bits under every sharding."""

    grad_norm: float
    """Norm of the gradient as ``step`` gets it, after clipping that was done before."""
    update_rms: float
    """RMS of the change of the weights, decay included."""
    weight_rms: float
    """RMS of the weights after the step."""
    orthogonality_error: float | None
    """RMS of sigma^2 - 1 over the singular values of the orthogonalized updates, before NorMuon scales them; 1 for zero
    updates. None in AdamW and Lion groups."""


def check_every(every: Any) -> int:
    """Returns an interval of monitoring, or raises ValueError."""
    if type(every) is not int or every < 0:
        raise ValueError(f"monitor_every {every!r}: expected a whole number of steps, or 0 for none")
    return every


def scalars(stats: Mapping[str, ParameterStats], grad_norm: float, prefix: str) -> dict[str, float]:
    """Values by tag: "optimizer/update_rms/blocks.0.weight" and so on, and "optimizer/grad_norm" of all of them."""
    start = f"{prefix}/" if prefix else ""
    out = {f"{start}grad_norm": grad_norm}
    for name, of_parameter in stats.items():
        for kind, value in of_parameter._asdict().items():
            if value is not None:
                out[f"{start}{kind}/{name}"] = value
    return out


def write(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Writes to a TensorBoard SummaryWriter, a W&B run (or the module wandb), or a function of (values, step)."""
    if hasattr(writer, "add_scalar"):
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)
    elif callable(getattr(writer, "log", None)):
        writer.log(dict(values), step=step)
    elif callable(writer):
        writer(dict(values), step)
    else:
        raise TypeError(
            f"writer {type(writer).__name__}: expected add_scalar(tag, value, step) as of a SummaryWriter, log(values,"
            " step=) as of a W&B run, or a function of (values, step)"
        )
