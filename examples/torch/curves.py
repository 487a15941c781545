"""Trains the example GPT in several ways and writes docs/lab/curves.md with its plots.

    python curves.py [--steps 200] [--out ../../docs/lab]
    python curves.py --coefficients      # only the section on coefficients of Newton-Schulz, in the page that is there

Ranks are processes of this one, on the CPU, with a thread each. Two runs of the comparison go on at a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpt
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from svg import Line, Plot
from torch.distributed.fsdp import fully_shard

import muster.torch

RANKS = 4
OPTIMIZERS = ("adamw", "muon", "normuon")
COEFFICIENTS = ("polar_express", "jordan", "capped3", "capped4")
RATES = (0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
SEEDS = (0, 1, 2)
LAYERS, BATCH, EVERY = 2, 16, 20  # of the comparison


@dataclass(frozen=True)
class Run:
    """One training: what is not said is as in gpt.py."""

    steps: int
    algorithm: str = "normuon"
    lr: float = 0.02
    seed: int = 0
    layers: int = gpt.LAYERS
    batch: int = gpt.BATCH
    strategy: str = "global"
    coefficients: str = "polar_express"
    share: bool = True  # each rank reads its part of a batch; or all of it


def _texts() -> tuple[torch.Tensor, torch.Tensor]:
    """To learn from, and to be tested on."""
    text = gpt.read_text()
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def _optimizer(model: torch.nn.Module, run: Run) -> tuple[muster.torch.NorMuon, torch.optim.lr_scheduler.LRScheduler]:
    groups = muster.torch.param_groups(model, adamw_lr=2e-3, verbose=False)
    optimizer = muster.torch.NorMuon(
        groups, lr=run.lr, algorithm=run.algorithm, strategy=run.strategy, coefficients=run.coefficients
    )
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / run.steps)


def train(run: Run, part: int = 0, parts: int = 1, sharded: bool = False) -> tuple[list[float], list[float]]:
    """The loss of every step, on all ranks, and the loss on unseen text before, every so many steps, and at the end."""
    torch.manual_seed(run.seed)
    model = gpt.GPT(layers=run.layers)
    if sharded:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer, schedule = _optimizer(model, run)
    seen, unseen = _texts()
    batches = gpt.Batches(seen, seed=run.seed + 1, part=part, parts=parts, batch=run.batch)
    test = gpt.Batches(unseen, seed=99, batch=64).next()
    losses, tested = [], []
    for step in range(run.steps + 1):
        if not sharded and step % EVERY == 0:
            with torch.no_grad():
                tested.append(gpt.loss_of(model, test).item())
        if step == run.steps:
            break
        loss = gpt.loss_of(model, batches.next())
        optimizer.zero_grad()
        loss.backward()
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        schedule.step()
        losses.append(_mean(loss.detach()))
    return losses, tested


def _mean(loss: torch.Tensor) -> float:
    if dist.is_initialized():
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    return loss.item()


def _rank(rank: int, runs: Sequence[Run], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    out = [train(run, rank if run.share else 0, RANKS if run.share else 1, sharded=True)[0] for run in runs]
    if rank == 0:
        Path(folder, "losses.json").write_text(json.dumps(out))
    gpt.stop()


def on_four_ranks(runs: Sequence[Run]) -> list[list[float]]:
    """Losses of runs under FSDP2."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (runs, folder), nprocs=RANKS)
        return json.loads(Path(folder, "losses.json").read_text())


def _one_thread(run: Run) -> tuple[list[float], list[float]]:
    torch.set_num_threads(1)
    return train(run)


def _difference(a: Sequence[float], b: Sequence[float]) -> str:
    largest = max(abs(x - y) for x, y in zip(a, b))
    return f"{largest:.1e}" if largest else "0"


def same_curves(steps: int, out: Path) -> dict[str, Any]:
    """One rank and four, and two strategies on four."""
    alone, _ = _one_thread(Run(steps))
    runs = [Run(steps, share=False), Run(steps), Run(steps, strategy="megabatch")]
    same_batch, shared, megabatch = on_four_ranks(runs)
    x = range(1, steps + 1)
    title, labels = "The example GPT: one process, and FSDP2 on four", ("step", "training loss")
    lines = [
        Line("1 rank", x, alone),
        Line("4 ranks, same gradients", x, same_batch, dashed=True),
        Line("4 ranks, a quarter of the batch each", x, shared, dashed=True),
    ]
    Plot(title, *labels, lines).write(out / "curves_ranks.svg")
    lines = [Line("global", x, shared), Line("megabatch", x, megabatch, dashed=True)]
    Plot("Two strategies, FSDP2 on four ranks", *labels, lines).write(out / "curves_strategies.svg")
    return {
        "last loss": alone[-1],
        "same gradients": _difference(alone, same_batch),
        "quarters": _difference(alone, shared),
        "strategies": _difference(shared, megabatch),
    }


Found = dict[str, dict[float, list[list[float]]]]  # losses on unseen text, by name, rate and seed


def _train_all(runs: Sequence[Run], names: Sequence[str]) -> Found:
    """The runs, whose names these are, two at a time."""
    with mp.get_context("spawn").Pool(2) as pool:
        results = pool.map(_one_thread, runs, chunksize=1)
    found: Found = {name: {lr: [] for lr in RATES} for name in names}
    for run, name, (_, tested) in zip(runs, names, results):
        found[name][run.lr].append(tested)
    return found


def _plots(steps: int, found: Found, what: str, out: Path) -> None:
    """curves_<what>.svg: each at its best rate; curves_<what>_rates.svg: by rate."""
    x = range(EVERY, steps + 1, EVERY)
    lines, by_rate = [], []
    for name, rates in found.items():
        best = best_rate(rates)
        columns = list(zip(*rates[best]))[1:]  # less the start, which would make all the rest small
        mean, low, high = ([f(c) for c in columns] for f in (statistics.fmean, min, max))
        lines.append(Line(f"{name}, rate {best:g}", x, mean, low, high))
        by_rate.append(Line(name, list(rates), [statistics.fmean(t[-1] for t in runs) for runs in rates.values()]))
    label = "loss on unseen text"
    Plot("At their best rates: mean and range of three seeds", "step", label, lines).write(out / f"curves_{what}.svg")
    title = f"After {steps} steps, by learning rate of the matrices"
    Plot(title, "rate", label, by_rate, log_x=True).write(out / f"curves_{what}_rates.svg")


def compare(steps: int, out: Path) -> Found:
    """The three optimizers."""
    grid = list(itertools.product(OPTIMIZERS, RATES, SEEDS))
    runs = [Run(steps, algorithm, lr, seed, LAYERS, BATCH) for algorithm, lr, seed in grid]
    found = _train_all(runs, [algorithm for algorithm, _, _ in grid])
    _plots(steps, found, "optimizers", out)
    return found


def compare_coefficients(steps: int, out: Path) -> Found:
    """NorMuon with several sets of coefficients."""
    grid = list(itertools.product(COEFFICIENTS, RATES, SEEDS))
    runs = [Run(steps, "normuon", lr, seed, LAYERS, BATCH, coefficients=name) for name, lr, seed in grid]
    found = _train_all(runs, [name for name, _, _ in grid])
    _plots(steps, found, "coefficients", out)
    return found


def best_rate(rates: dict[float, list[list[float]]]) -> float:
    return min(rates, key=lambda lr: statistics.fmean(tested[-1] for tested in rates[lr]))


def _rows(found: Found) -> str:
    rows = []
    for name, rates in found.items():
        best = best_rate(rates)
        cells = []
        for lr, runs in rates.items():
            cell = f"{statistics.fmean(tested[-1] for tested in runs):.3f}"
            cells.append(f"**{cell}**" if lr == best else cell)
        rows.append(f"| {name} | {' | '.join(cells)} | {', '.join(f'{tested[-1]:.3f}' for tested in rates[best])} |")
    return "\n".join(rows)


def _when(found: Found) -> str:
    """When the others are where AdamW ends."""
    means = {name: [statistics.fmean(c) for c in zip(*rates[best_rate(rates)])] for name, rates in found.items()}
    target = means.pop("adamw")[-1]
    out = []
    for name, mean in means.items():
        at = next((i * EVERY for i, loss in enumerate(mean) if loss <= target), None)
        does = "does not reach" if at is None else f"at step {at} is at or below"
        out.append(f"{name} {does} the {target:.3f} of AdamW's end.")
    return " ".join(out)


def page(steps: int, same: dict[str, Any], found: Found, seconds: float) -> str:
    return PAGE.format(
        steps=steps,
        same=same,
        rates=" | ".join(f"{lr:g}" for lr in RATES),
        dashes="|".join(["---"] * (len(RATES) + 2)),
        table=_rows(found),
        when=_when(found),
        minutes=seconds / 60,
        layers=LAYERS,
        batch=BATCH,
        torch=torch.__version__,
    )


PAGE = """# Loss curves

Made by `examples/torch/curves.py` in {minutes:.1f} minutes on two CPU cores that others used too, with PyTorch {torch}:
small models on little text, so that whoever doubts can run it again. The GPT is that of
[examples/torch](../../examples/torch/README.md), the text [in this repository](../../data/README.md).

## One rank and four

![losses on one rank and on four](curves_ranks.svg)

{steps} steps of NorMuon on one process, and under FSDP2 on four; the last loss is {same[last loss]:.4f}. Given the same
gradients (every rank reads the whole batch) the largest difference of any loss is {same[same gradients]}. Where each
rank reads a quarter of the batch, torch sums gradients in another order, and the largest difference is
{same[quarters]}.

## Two strategies

![losses under two strategies](curves_strategies.svg)

`global` and `megabatch` ([planning.md](../explanation/planning.md)) send and pad differently, on the same four ranks, a quarter of the
batch each. The largest difference of any loss is {same[strategies]}.

## AdamW, Muon and NorMuon

![losses of three optimizers](curves_optimizers.svg)

{steps} steps each, of {batch} sequences of 64 bytes, with {layers} layers; the rate falls linearly to 0. Only the
matrices differ in their optimizer: embeddings, head and gains are AdamW's in all runs, at 0.002. Every optimizer had
the same grid of rates and the same three seeds; the best is the one with the least mean loss on unseen text (the last
tenth) at the end.

| mean loss at the end, by rate | {rates} | best, by seed |
|{dashes}|
{table}

{when}

![losses by learning rate](curves_optimizers_rates.svg)

It says what three optimizers do to a toy in its first {steps} steps, and nothing about larger models or longer runs.
"""
SECTION = """## Coefficients of Newton-Schulz

![losses with several sets of coefficients](curves_coefficients.svg)

The same again: NorMuon with the sets `polar_express` and `jordan`, both of five steps, and with
[capped](../explanation/spectral-cap.md) sets of three and four. `curves.py --coefficients` made this section in
{minutes:.1f} minutes on the same two cores. At their best rates the means differ by {spread:.3f}, seeds of one set by up to
{seeds:.3f}.

| mean loss at the end, by rate | {rates} | best, by seed |
|{dashes}|
{table}

![losses by learning rate](curves_coefficients_rates.svg)

The matrices are 96 wide, not more than the sketch of `capped3` has columns: there the cap acts on all singular values.
"""


def section(found: Found, seconds: float) -> str:
    dashes = "|".join(["---"] * (len(RATES) + 2))
    rates = " | ".join(f"{lr:g}" for lr in RATES)
    best = [[tested[-1] for tested in rates_of[best_rate(rates_of)]] for rates_of in found.values()]
    means = [statistics.fmean(losses) for losses in best]
    return SECTION.format(
        minutes=seconds / 60,
        rates=rates,
        dashes=dashes,
        table=_rows(found),
        spread=max(means) - min(means),
        seeds=max(max(losses) - min(losses) for losses in best),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs" / "lab")
    parser.add_argument("--coefficients", action="store_true", help="only the section on them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = options.out / "curves.md"
    if options.coefficients:
        text = place.read_text().partition(SECTION.partition("\n")[0])[0]
    else:
        begin = time.monotonic()
        same = same_curves(options.steps, options.out)
        print(same, file=sys.stderr, flush=True)
        found = compare(options.steps, options.out)
        text = page(options.steps, same, found, time.monotonic() - begin)
    begin = time.monotonic()
    found = compare_coefficients(options.steps, options.out)
    place.write_text(text.rstrip() + "\n\n" + section(found, time.monotonic() - begin))


if __name__ == "__main__":
    main()
