"""One training step of GPT-2 small in PyTorch: whole, and of the optimizer alone, on the device and on the host.

    python3 benchmarks/torch_step.py muster torch_muon adamw
    PYTHONPATH=elsewhere python3 benchmarks/torch_step.py muster peers:dion_normuon

Prints a JSON line for each. An optimizer of somewhere else is a function module:name of two lists of parameters, the
matrices of the blocks and the others, that returns optimizers. Weights are f32, products bf16 (autocast); medians.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Parameters = Sequence[nn.Parameter]
LR, ADAMW = 0.02, {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.0}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.places = nn.Embedding(options.context, options.width)
        self.blocks = nn.ModuleList(Block(options.width, options.width // 64) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def muster_normuon(matrices: Parameters, others: Parameters) -> list[torch.optim.Optimizer]:
    import muster.torch

    groups = [{"params": list(matrices)}, {"params": list(others), "algorithm": "adamw", **ADAMW}]
    return [muster.torch.NorMuon(groups, lr=LR, decay="cautious")]


def torch_muon(matrices: Parameters, others: Parameters) -> list[torch.optim.Optimizer]:
    return [torch.optim.Muon(matrices, lr=LR), torch.optim.AdamW(others, **ADAMW)]


def adamw(matrices: Parameters, others: Parameters) -> list[torch.optim.Optimizer]:
    return [torch.optim.AdamW([*matrices, *others], **ADAMW)]


KNOWN = {"muster": muster_normuon, "torch_muon": torch_muon, "adamw": adamw}


def find(name: str) -> Callable[[Parameters, Parameters], Sequence[torch.optim.Optimizer]]:
    if name in KNOWN:
        return KNOWN[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise SystemExit(f"{name}: expected one of {', '.join(KNOWN)}, or module:function")
    return getattr(importlib.import_module(module), function)


class Clock:
    """Places in time, of the host and of the device. ``first`` is which of them is taken first."""

    def __init__(self, device: str, first: str = "host") -> None:
        self.event = torch.cuda.Event(enable_timing=True) if device == "cuda" else None
        if self.event is not None and first == "device":
            self.event.record()
        self.host = time.perf_counter()
        if self.event is not None and first == "host":
            self.event.record()

    def since(self, before: Clock) -> tuple[float, float]:
        """Milliseconds, on the host and on the device, which must be idle by now."""
        host = (self.host - before.host) * 1e3
        return host, host if self.event is None else before.event.elapsed_time(self.event)


def measure(name: str, options: argparse.Namespace) -> dict[str, object]:
    torch.manual_seed(0)
    device = options.device
    model = GPT(options).to(device)
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    optimizers = find(name)(matrices, [p for p in model.parameters() if id(p) not in chosen])
    tokens = torch.randint(options.vocabulary, (options.batch, options.context + 1), device=device)
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    rows, first_s = [], 0.0
    for step in range(options.warm_up + options.steps):
        synchronize()
        begin = Clock(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        middle = Clock(device, "device")
        for optimizer in optimizers:
            optimizer.step()
        end = Clock(device)
        synchronize()
        if step == 0:
            first_s = time.perf_counter() - middle.host
        elif step >= options.warm_up:
            rows.append((*end.since(begin), *end.since(middle)))
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
    whole_host, whole, step_host, step_device = (round(statistics.median(column), 3) for column in zip(*rows))
    out = {"optimizer": name, "device": device, "ms": whole, "host_ms": whole_host, "step_ms": step_device}
    out |= {"step_host_ms": step_host, "first_step_s": round(first_s, 2), "loss": round(loss.item(), 4)}
    if device == "cuda":
        out["peak_mib"] = torch.cuda.max_memory_allocated() >> 20
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimizers", nargs="+", metavar="OPTIMIZER")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    for name, value in (("layers", 12), ("width", 768), ("vocabulary", 50304), ("context", 1024), ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=5)
    options = parser.parse_args()
    for name in options.optimizers:
        print(json.dumps(measure(name, options)), flush=True)


if __name__ == "__main__":
    main()
