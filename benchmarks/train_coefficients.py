"""Held-out loss of a GPT of GPT-2 small's shape on one GPU, by the coefficients of Newton-Schulz: several sets, rates and seeds, in turn.

    python3 benchmarks/train_coefficients.py --minutes 9 --out results
    python3 benchmarks/train_coefficients.py --rates auto --seeds 3 --steps 350 ...      # rates: the best of polar_express, and its better neighbour
    python3 benchmarks/train_coefficients.py --device cpu --layers 2 --width 64 --context 64 --batch 4 --steps 20 --megabytes 2 --no-compile

The text is what the machine has: sources and documentation of Python, its packages and the system, each file once. A file is held out or learnt from by
the hash of its content. A token is a byte. Every run of a seed starts from the same weights and reads the same batches; only the optimizer of the
matrices in the layers differs. Their rate falls to 0 in a straight line.

`exact` orthogonalizes in float32 with ten steps in plain PyTorch, and is otherwise the same NorMuon. Runs go in turn, all sets and rates for seed 0
first, so that a cut-off leaves a fair comparison. After each run, training.json and training.md are written.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import json
import math
import os
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import muster.torch

SETS = ("polar_express", "capped3", "capped4", "jordan", "exact")
BASE = "polar_express"
LADDER = (0.0025, 0.005, 0.01, 0.02, 0.04)
SUFFIXES = {
    ".py",
    ".pyi",
    ".h",
    ".hpp",
    ".cuh",
    ".c",
    ".cpp",
    ".txt",
    ".rst",
    ".md",
    ".html",
    ".pod",
    ".pm",
    ".pl",
    ".sh",
}
SMALLEST, LARGEST = 200, 1 << 20  # bytes of a file


# The text.


def _files() -> Iterator[Path]:
    paths = sysconfig.get_paths()
    roots = {paths[k] for k in ("stdlib", "purelib", "platlib")} | {
        "/usr/include",
        "/usr/share",
        "/usr/lib/python3",
        "/usr/local/include",
    }
    roots |= {p for p in sys.path if p.endswith("-packages")}
    for root in sorted({os.path.realpath(r) for r in roots if Path(r).is_dir()}):
        for folder, folders, names in os.walk(root):
            folders.sort()
            yield from (Path(folder, name) for name in sorted(names) if os.path.splitext(name)[1] in SUFFIXES)


def _read(path: Path) -> tuple[bytes, bytes] | None:
    try:
        if path.is_symlink() or not SMALLEST <= path.stat().st_size <= LARGEST:
            return None
        text = path.read_bytes()
    except OSError:
        return None
    return None if b"\0" in text else (hashlib.blake2b(text, digest_size=16).digest(), text)


def read_text(most: int) -> tuple[bytearray, bytearray, dict[str, int]]:
    """To learn from and held out, in the order of the files' hashes: the same for the same files, wherever they lie."""
    with ThreadPoolExecutor(16) as pool:
        read = [r for r in pool.map(_read, dict.fromkeys(_files()), chunksize=64) if r]
    learn, hold = bytearray(), bytearray()
    unique = sorted(dict(read).items())
    used = 0
    for digest, text in unique:
        if len(learn) + len(hold) >= most:
            break
        used += 1
        (hold if digest[-1] < 8 else learn).extend(text + b"\0")
    about = {"files read": len(read), "different files": len(unique), "files used": used}
    return learn, hold, about | {"bytes to learn from": len(learn), "bytes held out": len(hold)}


class Text:
    def __init__(self, text: bytearray, device: str, context: int) -> None:
        self.text = torch.frombuffer(text, dtype=torch.uint8).to(device)
        self.window = torch.arange(context + 1, device=device)

    def batch(self, draw: torch.Generator, size: int) -> Tensor:
        at = torch.randint(len(self.text) - len(self.window), (size,), generator=draw).to(self.text.device)
        return self.text[at[:, None] + self.window].long()


# The model.


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.norm2(x))).square())


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, context: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64)) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 256, bias=False)

    @torch.no_grad()
    def start(self, seed: int) -> None:
        """New weights, in place: what was compiled stays."""
        draw = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if p.ndim == 1:
                p.fill_(1)
            elif name.endswith(("o.weight", "down.weight", "head.weight")):
                p.zero_()
            else:
                p.copy_(
                    torch.randn(p.shape, generator=draw)
                    * (0.02 if "tokens" in name or "places" in name else p.shape[1] ** -0.5)
                )

    def forward(self, batch: Tensor) -> Tensor:
        x = self.tokens(batch[:, :-1]) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), batch[:, 1:].flatten())


# The exact factor.


def _minimax(low: float, high: float) -> tuple[tuple[float, float, float], float]:
    """The odd polynomial of degree five that is closest to 1 from low to high, and by how much."""
    q, r = 0.25 * low + 0.75 * high, 0.75 * low + 0.25 * high
    for _ in range(60):
        points = torch.tensor([low, r, q, high], dtype=torch.float64)
        sign = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
        a, b, c, error = torch.linalg.solve(
            torch.stack([points, points**3, points**5, sign], 1), torch.ones(4, dtype=torch.float64)
        ).tolist()
        root = math.sqrt(max(9 * b * b - 20 * a * c, 0))
        q, r = math.sqrt((-3 * b + root) / (10 * c)), math.sqrt((-3 * b - root) / (10 * c))
        q, r = max(q, r), min(q, r)
    return (a, b, c), abs(error)


def exact_steps(low: float = 1e-5, count: int = 10) -> list[tuple[float, float, float]]:
    """Steps that take singular values from ``low`` to 1 to nearly 1. They tolerate inputs that are off by 0.1 %."""
    steps, high = [], 1.0
    for _ in range(count):
        step, error = _minimax(low * 0.999, high * 1.001)
        steps.append(step)
        low, high = 1 - error, 1 + error
        if error < 1e-3:
            break
    return steps


@torch.no_grad()
def orthogonalize(x: Tensor, steps: Sequence[tuple[float, float, float]]) -> Tensor:
    """A stack of matrices, in their own precision."""
    if x.shape[-2] > x.shape[-1]:
        return orthogonalize(x.mT, steps).mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-30)
    x = x / (1.01 * (x @ x.mT).norm(dim=(-2, -1), keepdim=True).sqrt()).clamp(min=1e-30)
    for a, b, c in steps:
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class PlainNorMuon:
    """NorMuon as Muster defines it (docs/explanation/cpu-kernels.md), with any orthogonalization; without decay."""

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        lr: float,
        steps: Sequence[tuple[float, float, float]],
        normuon: bool = True,
    ) -> None:
        self.lr, self.steps, self.normuon = lr, steps, normuon
        shapes = dict.fromkeys(tuple(p.shape) for p in matrices)
        self.stacks = [[p for p in matrices if tuple(p.shape) == shape] for shape in shapes]
        self.momentum = [torch.zeros(len(s), *s[0].shape, device=s[0].device) for s in self.stacks]
        self.squares = [m.new_zeros(m.shape[0], max(m.shape[1:])) for m in self.momentum]

    @torch.no_grad()
    def step(self) -> None:
        for stack, momentum, squares in zip(self.stacks, self.momentum, self.squares):
            gradient = torch.stack([p.grad.float() for p in stack])
            momentum.lerp_(gradient, 0.05)
            update = gradient.lerp(momentum, 0.95).bfloat16().float()  # as it travels
            update = orthogonalize(update, self.steps)
            rows, columns = update.shape[1:]
            if self.normuon:
                axis = 2 if rows >= columns else 1
                mean = update.square().mean(axis)
                squares.lerp_(mean, 0.05)
                scaled = update / (squares.sqrt() + 1e-8).unsqueeze(axis)
                update = scaled * (
                    update.norm(dim=(1, 2), keepdim=True) / scaled.norm(dim=(1, 2), keepdim=True).clamp(min=1e-30)
                )
            rate = self.lr * math.sqrt(max(1, rows / columns))
            torch._foreach_add_([p.data for p in stack], list(update.bfloat16().float().unbind()), alpha=-rate)


# Training.


@dataclass(frozen=True)
class Run:
    set: str
    lr: float
    seed: int


@dataclass
class Result:
    run: Run
    loss: float  # held out, at the end
    curve: list[tuple[int, float]]  # held out, on a part of it
    seconds: float
    step_ms: float


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, options.device
        learn, hold, self.about = read_text(options.megabytes << 20)
        if min(len(learn), len(hold)) <= options.context + 1:
            raise SystemExit(f"too little text: {self.about}")
        self.learn, self.hold = (Text(t, self.device, options.context) for t in (learn, hold))
        self.model = GPT(options.layers, options.width, options.context).to(self.device)
        self.loss = self.model if options.no_compile else torch.compile(self.model)
        draw = torch.Generator().manual_seed(99)
        self.tests = [self.hold.batch(draw, options.batch) for _ in range(options.tests)]

    def _loss(self, batch: Tensor) -> Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            return self.loss(batch)

    def _optimizers(self, run: Run) -> tuple[list[torch.optim.Optimizer], PlainNorMuon | None]:
        matrices = [p for p in self.model.blocks.parameters() if p.ndim == 2]
        chosen = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in chosen]
        adamw = {"params": others, "algorithm": "adamw", "lr": self.options.adamw_lr}
        kind = self.options.algorithm
        if run.set == "exact":
            plain = PlainNorMuon(matrices, run.lr, exact_steps(), kind == "normuon")
            return [muster.torch.NorMuon([adamw])], plain
        ours = {"params": matrices, "algorithm": kind, "coefficients": run.set}
        return [muster.torch.NorMuon([ours, adamw], lr=run.lr)], None

    def _test(self, batches: Sequence[Tensor]) -> float:
        with torch.no_grad():
            return torch.stack([self._loss(batch) for batch in batches]).mean().item()

    def train(self, run: Run, steps: int) -> Result:
        self.model.start(run.seed)
        optimizers, plain = self._optimizers(run)
        schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 - step / steps) for o in optimizers]
        draw = torch.Generator().manual_seed(1000 + run.seed)
        curve: list[tuple[int, float]] = []
        begin = time.monotonic()
        for step in range(steps):
            if step and step % self.options.every == 0:
                curve.append((step, self._test(self.tests[: max(1, len(self.tests) // 8)])))
            if step == min(10, steps // 2):
                self._synchronize()
                started = step, time.monotonic()
            self._loss(self.learn.batch(draw, self.options.batch)).backward()
            if plain is not None:
                plain.lr = run.lr * (1 - step / steps)
                plain.step()
            for optimizer, schedule in zip(optimizers, schedules):
                optimizer.step()
                schedule.step()
            self.model.zero_grad(set_to_none=False)
        self._synchronize()
        ms = 1e3 * (time.monotonic() - started[1]) / max(1, steps - started[0])
        loss = self._test(self.tests)
        del optimizers, schedules, plain
        gc.collect()  # frees the graph and the state before the next run
        return Result(run, loss if math.isfinite(loss) else math.inf, curve, time.monotonic() - begin, ms)

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


# What it says.


def p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Welch's t-test, two-sided: the probability of means this far apart if the true means are equal."""
    if min(len(a), len(b)) < 2:
        return math.nan
    va, vb = statistics.variance(a) / len(a), statistics.variance(b) / len(b)
    if va + vb == 0:
        return 1.0 if statistics.fmean(a) == statistics.fmean(b) else 0.0
    t = abs(statistics.fmean(a) - statistics.fmean(b)) / math.sqrt(va + vb)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    # The integral of the density of t is one of cos^(freedom - 1): x = sqrt(freedom) tan(angle).
    end = math.atan2(t, math.sqrt(freedom))
    n = 2000
    area = (
        sum(math.cos(end + (math.pi / 2 - end) * (i + 0.5) / n) ** (freedom - 1) for i in range(n))
        * (math.pi / 2 - end)
        / n
    )
    return 2 * area * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


class Report:
    def __init__(self, folder: Path, about: dict[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.about = folder, about
        self.results: list[Result] = []

    def add(self, result: Result) -> None:
        self.results.append(result)
        rows = [
            asdict(r.run)
            | {"loss": r.loss, "curve": r.curve, "seconds": round(r.seconds, 2), "step_ms": round(r.step_ms, 2)}
            for r in self.results
        ]
        (self.folder / "training.json").write_text(json.dumps({"about": self.about, "runs": rows}, indent=1) + "\n")
        (self.folder / "training.md").write_text(self._page())

    def losses(self, name: str, lr: float) -> list[float]:
        return [r.loss for r in self.results if (r.run.set, r.run.lr) == (name, lr)]

    def _paired(self, name: str, lr: float) -> str:
        """The mean difference of runs with the same seed and rate."""
        of = {(r.run.set, r.run.lr, r.run.seed): r.loss for r in self.results}
        pairs = [(of[name, lr, s], of[BASE, lr, s]) for (n, l, s) in of if (n, l) == (name, lr) and (BASE, lr, s) in of]
        if not pairs:
            return ""
        return f"{statistics.fmean(a - b for a, b in pairs):+.4f}"

    def _page(self) -> str:
        out = [", ".join(f"{k}: {v}" for k, v in self.about.items()) + ".", ""]
        rates = sorted({r.run.lr for r in self.results})
        sets = list(dict.fromkeys(r.run.set for r in self.results))
        out += [
            "| set | rate | held-out loss, by seed | mean | standard deviation | less that of polar_express, same seeds | p, against polar_express at this rate | ms per step |"
        ]
        out += ["|---|---|---|---|---|---|---|---|"]
        for name, lr in itertools.product(sets, rates):
            own = self.losses(name, lr)
            if not own:
                continue
            spread = f"{statistics.stdev(own):.4f}" if len(own) > 1 else ""
            ms = statistics.median(r.step_ms for r in self.results if (r.run.set, r.run.lr) == (name, lr))
            p = "" if name == BASE else self._p(own, self.losses(BASE, lr))
            out.append(
                f"| {name} | {lr:g} | {', '.join(f'{v:.4f}' for v in own)} | {statistics.fmean(own):.4f} | {spread} | {self._paired(name, lr)} | {p} | {ms:.1f} |"
            )
        out += ["", "| each at its best rate | rate | mean | less that of polar_express | p |", "|---|---|---|---|---|"]
        best = {
            name: min(
                (lr for lr in rates if self.losses(name, lr)), key=lambda lr: statistics.fmean(self.losses(name, lr))
            )
            for name in sets
        }
        base = self.losses(BASE, best[BASE]) if BASE in best else []
        for name, lr in best.items():
            own = self.losses(name, lr)
            less = f"{statistics.fmean(own) - statistics.fmean(base):+.4f}" if base and name != BASE else ""
            out.append(
                f"| {name} | {lr:g} | {statistics.fmean(own):.4f} | {less} | {'' if name == BASE else self._p(own, base)} |"
            )
        return "\n".join(out) + "\n"

    @staticmethod
    def _p(a: Sequence[float], b: Sequence[float]) -> str:
        p = p_value(a, b)
        return "" if math.isnan(p) else f"{p:.3g}"


def find_rates(trainer: Trainer, steps: int) -> list[float]:
    """The rate with which the base set is best, and the better of its neighbours."""
    losses = {}
    for lr in LADDER:
        losses[lr] = trainer.train(Run(BASE, lr, 0), steps).loss
        print(f"rate {lr:g}: {losses[lr]:.4f} after {steps} steps", flush=True)
    best = min(losses, key=losses.__getitem__)
    at = LADDER.index(best)
    neighbours = [LADDER[i] for i in (at - 1, at + 1) if 0 <= i < len(LADDER)]
    return sorted([best, min(neighbours, key=losses.__getitem__)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("training"))
    parser.add_argument(
        "--minutes", type=float, default=9, help="begins no round of all sets that would end after them"
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=[*muster._muster.coefficient_names(), "exact"])
    parser.add_argument("--algorithm", choices=["normuon", "muon"], default="normuon")
    parser.add_argument("--rates", nargs="*", default=["0.01", "0.02"], help="of the matrices; or auto")
    parser.add_argument("--adamw-lr", type=float, default=1e-3)
    for name, value in (
        ("layers", 12),
        ("width", 768),
        ("context", 1024),
        ("batch", 16),
        ("steps", 350),
        ("seeds", 3),
        ("first-seed", 0),
        ("tests", 32),
        ("every", 50),
        ("megabytes", 200),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--no-compile", action="store_true", help="run the model without torch.compile")
    options = parser.parse_args()
    begin = time.monotonic()
    torch.set_float32_matmul_precision("highest")  # for `exact`; the model's products are bf16
    trainer = Trainer(options)
    print(f"text after {time.monotonic() - begin:.1f} s: {trainer.about}", flush=True)
    try:
        trainer.train(Run(BASE, 0.01, 0), 12)
    except Exception as error:
        if options.no_compile:
            raise
        print(f"without torch.compile: {type(error).__name__}: {error}"[:300], flush=True)
        trainer.loss = trainer.model
        trainer.train(Run(BASE, 0.01, 0), 12)
    print(f"warm after {time.monotonic() - begin:.1f} s", flush=True)
    rates = find_rates(trainer, options.steps // 2) if options.rates == ["auto"] else [float(r) for r in options.rates]
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    about = trainer.about | {
        k: getattr(options, k) for k in ("algorithm", "layers", "width", "context", "batch", "steps")
    }
    report = Report(
        options.out, about | {"device": device, "PyTorch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    )
    longest: dict[str, float] = {}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for seed, lr in itertools.product(seeds, rates):
        expected = sum(longest.get(name, 0) for name in options.sets)
        if time.monotonic() - begin + expected > 60 * options.minutes:
            print(f"no time for all sets at rate {lr:g} with seed {seed}: {expected:.0f} s", flush=True)
            break
        for name in options.sets:
            result = trainer.train(Run(name, lr, seed), options.steps)
            longest[name] = max(longest.get(name, 0), result.seconds)
            report.add(result)
            took = f"{result.step_ms:.1f} ms per step, after {time.monotonic() - begin:.0f} s"
            print(f"{name}, rate {lr:g}, seed {seed}: {result.loss:.4f}, {took}", flush=True)
    print(f"{options.out}: after {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
