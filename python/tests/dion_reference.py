"""The maths of Dion's Muon and NorMuon, by its documentation, in float64; and its form of a state_dict.

Dion is not installed where tests run. Sums as momentum, mean squares of rows, decay by the plain learning rate, one
learning rate a matrix by its shape, and row blocks that are scaled before NorMuon sees them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]


def orthogonalize(x: torch.Tensor) -> torch.Tensor:
    """Of (..., rows, columns), in five steps of polar express."""
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def _scale(adjust: str | None, rows: int, columns: int) -> float:
    return {
        None: 1.0,
        "spectral_norm": math.sqrt(rows / columns),
        "rms_norm": 0.2 * math.sqrt(max(rows, columns)),
    }[adjust]


def _normalize(o: torch.Tensor, v: torch.Tensor, beta2: float) -> tuple[torch.Tensor, torch.Tensor]:
    norm = o.norm(dim=(-2, -1), keepdim=True)
    v = beta2 * v + (1 - beta2) * o.square().mean(-1, keepdim=True)
    o = o / (v.sqrt() + 1e-8)
    return o * norm / o.norm(dim=(-2, -1), keepdim=True), v


class Reference:
    """Weights and state of some groups in Dion's words; ``step`` takes gradients in the order of the parameters."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        defaults = {
            "lr": 0.01,
            "mu": 0.95,
            "muon_beta2": 0.95,
            "beta1": 0.9,
            "beta2": 0.95,
            "weight_decay": 0.01,
            "cautious_wd": False,
            "algorithm": "normuon",
            "step": 0,
            "epsilon": 1e-8,
            "nesterov": False,
            "flatten": False,
            "adjust_lr": "spectral_norm",
        }
        self.groups = [{**defaults, **group} for group in groups]
        self.weights = [w.double() for group in groups for w in group["params"]]
        self.owners = [group for group in self.groups for _ in group["params"]]
        self.states: list[dict[str, torch.Tensor]] = []
        for w, group in zip(self.weights, self.owners):
            extra = {"normuon": {"variance_neuron": torch.zeros_like(w[..., :1])} if w.ndim > 1 else {}}
            extra["adamw"] = {"variance": torch.zeros_like(w), "step_dev": torch.zeros(())}
            self.states.append({"momentum": torch.zeros_like(w), **extra.get(group["algorithm"], {})})

    def step(self, gradients: list[torch.Tensor]) -> None:
        for group in self.groups:
            group["step"] += 1
        for w, g, state, group in zip(self.weights, gradients, self.states, self.owners):
            update = self._elementwise if group["algorithm"] in ("adamw", "lion") else self._matrix
            change, rate = update(w, g.double(), state, group)
            kept = (w * change >= 0).double() if group["cautious_wd"] else 1.0
            w -= group["lr"] * group["weight_decay"] * w * kept
            w -= rate * change

    def _matrix(self, w: torch.Tensor, g: torch.Tensor, state: dict, group: dict) -> tuple[torch.Tensor, float]:
        state["momentum"] = m = group["mu"] * state["momentum"] + g
        update = group["mu"] * m + g if group["nesterov"] else m
        rows, columns = w.shape[-2:]
        full = _scale(group["adjust_lr"], rows, columns)
        sizes = group.get("split_sizes") or [rows]
        blocks = []
        for part in update.split(sizes, dim=-2):
            blocks.append(orthogonalize(part) * _scale(group["adjust_lr"], part.shape[-2], columns) / full)
        if group["algorithm"] == "normuon":
            parts = state["variance_neuron"].split(sizes, dim=-2)
            done = [_normalize(o, v, group["muon_beta2"]) for o, v in zip(blocks, parts)]
            blocks = [o for o, _ in done]
            state["variance_neuron"] = torch.cat([v for _, v in done], dim=-2)
        return torch.cat(blocks, dim=-2), group["lr"] * full

    def _elementwise(self, w: torch.Tensor, g: torch.Tensor, state: dict, group: dict) -> tuple[torch.Tensor, float]:
        beta1, beta2, m = group["beta1"], group["beta2"], state["momentum"]
        if group["algorithm"] == "lion":
            state["momentum"] = beta2 * m + (1 - beta2) * g
            return (beta1 * m + (1 - beta1) * g).sign(), group["lr"]
        state["momentum"] = m = beta1 * m + (1 - beta1) * g
        state["variance"] = v = beta2 * state["variance"] + (1 - beta2) * g.square()
        state["step_dev"] = state["step_dev"] + 1
        count = int(state["step_dev"])
        return m / (1 - beta1**count) / ((v / (1 - beta2**count)).sqrt() + group["epsilon"]), group["lr"]

    def state_dict(self) -> dict[str, Any]:
        """As Dion's optimizers of float32 parameters give it."""
        state = {i: {key: value.float() for key, value in s.items()} for i, s in enumerate(self.states)}
        groups, first = [], 0
        for group in self.groups:
            count = len(group["params"])
            groups.append({**group, "params": list(range(first, first + count))})
            first += count
        return {"state": state, "param_groups": groups}
