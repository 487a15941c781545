"""How close orthogonalized matrices are to the exact polar factor: Muster's sets of coefficients and the public peers, as they run in a step.

    python3 benchmarks/closeness.py --spectra momentum_spectra.json --out results
    PYTHONPATH=peers python3 benchmarks/closeness.py --seconds 120 ...       # with dion and gram_newton_schulz found there
    python3 benchmarks/closeness.py --device cpu --shrink 12 --limit 4       # a small run for a machine without a GPU

Every input is rounded to bf16 first, and compared with the polar factor of what is left, from a float64 SVD; for inputs of rank r with that of their r
largest singular values. Muster runs a whole step of Muon whose momentum and weights are 0. Writes closeness.json and closeness.md after each set, so a run
that is cut off leaves what it has. A peer that cannot be imported or fails is named in both.

rms: root of the mean square of sigma - 1, over the r largest singular values of the result. 1 - cos: of the angle between the result and the exact
factor, as vectors. largest: the largest singular value.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

SETS = ("polar_express", "polar_express_tight", "capped3", "capped4", "jordan")
CHUNK = 24  # matrices that a peer gets at once: one shape, so that it compiles once


@dataclass
class Input:
    """A matrix and its exact polar factor, in float64. ``group``: inputs of which only the mean and the worst are told."""

    name: str
    matrix: Tensor  # bf16
    group: str = ""
    rank: int = -1  # -1: full
    finite: bool = True
    polar: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[0], self.matrix.shape[1]

    @property
    def values(self) -> int:
        return min(self.shape) if self.rank < 0 else self.rank


class Maker:
    """Makes inputs from singular values, on the device: the same for the same name."""

    def __init__(self, device: str, shrink: int) -> None:
        self.device, self.shrink = device, shrink
        self.made: list[Input] = []

    def size(self, n: int) -> int:
        return max(1, n // self.shrink)

    def _random(self, name: str, *shape: int) -> Tensor:
        draw = torch.Generator(self.device).manual_seed(crc32(name.encode()))
        return torch.randn(*shape, generator=draw, dtype=torch.float64, device=self.device)

    def _orthogonal(self, name: str, rows: int, columns: int) -> Tensor:
        q, r = torch.linalg.qr(self._random(name, rows, columns))
        return q * r.diagonal().sign()

    def add(self, name: str, matrix: Tensor, **more: object) -> None:
        self.made.append(Input(name, matrix.to(torch.bfloat16), **more))

    def spectrum(self, name: str, values: Sequence[float], rows: int, columns: int, **more: object) -> None:
        """U S V^T of random orthogonal U and V."""
        n = min(rows, columns)
        s = torch.tensor(values, dtype=torch.float64, device=self.device)
        if len(s) != n:  # shrunk: every so manieth value
            s = s[torch.linspace(0, len(s) - 1, n).round().long().to(self.device)]
        u, v = self._orthogonal(name + "u", rows, n), self._orthogonal(name + "v", columns, n)
        self.add(name, (u * s) @ v.T, **more)

    def random(self, name: str, rows: int, columns: int, **more: object) -> None:
        self.add(name, self._random(name, rows, columns), **more)

    def low_rank(self, name: str, rank: int, rows: int, columns: int) -> None:
        """A product of matrices of signs: exact in bf16, so that its rank is ``rank``."""
        signs = [
            self._random(name + end, *shape).sign() for end, shape in (("a", (rows, rank)), ("b", (rank, columns)))
        ]
        self.add(name, signs[0] @ signs[1], rank=rank)


def logarithmic(n: int, low: float) -> list[float]:
    return [low ** (i / max(n - 1, 1)) for i in range(n)]


def earlier_inputs(make: Maker) -> None:
    """The inputs of benchmarks/results/2026-11-16-h200.md."""
    n, m, large = make.size(768), make.size(3072), make.size(2048)
    for rows, columns in ((n, n), (m, n), (n, m), (large, large)):
        make.random(f"random {rows}x{columns}", rows, columns)
    heavy = [1 - 0.5 * i / max(n - 1, 1) for i in range(n)]
    kinds: dict[str, tuple[list[float], int]] = {
        "logarithmic to 1e-3": (logarithmic(n, 1e-3), -1),
        "logarithmic to 1e-6": (logarithmic(n, 1e-6), -1),
        "linear": ([1 - i / n for i in range(n)], -1),
        "heavy": ([10 * v if i < max(1, n // 48) else v for i, v in enumerate(heavy)], -1),
        "half rank": ([1.0] * (n // 2) + [0.0] * (n - n // 2), max(1, n // 2)),
        "all equal": ([1.0] * n, -1),
    }
    for kind, (values, rank) in kinds.items():
        for rows, columns in ((n, n), (m, n)):
            make.spectrum(f"{kind}, {rows}x{columns}", values, rows, columns, rank=rank)


def hard_inputs(make: Maker) -> None:
    n, m = make.size(768), make.size(3072)
    make.spectrum(f"logarithmic to 1e-9, {n}x{n}", logarithmic(n, 1e-9), n, n)
    for rest in (1e-2, 1e-3):
        for top in (24, 32, 33, 64, 96, 97, 128, 200):
            count = max(1, min(n, top // make.shrink if make.shrink > 1 else top))
            for rows, columns in ((n, n), (n, m)):
                name = f"{count} equal over {rest:g}, {rows}x{columns}"
                if all(i.name != name for i in make.made):
                    make.spectrum(name, [1.0] * count + [rest] * (n - count), rows, columns)
    for rows, columns in ((n, n), (n, m), (m, n)):
        for rank in (1, 2, 10, n // 2):
            if 0 < rank < n:
                make.low_rank(f"rank {rank}, {rows}x{columns}", rank, rows, columns)
        make.add(f"zero, {rows}x{columns}", torch.zeros(rows, columns, device=make.device), rank=0)


def small_inputs(make: Maker) -> None:
    """Sides below, at and above the sketch's columns, tall and wide, and odd ones."""
    for rows, columns in (
        (1, 1),
        (1, 768),
        (768, 1),
        (2, 3),
        (8, 768),
        (40, 40),
        (64, 256),
        (96, 96),
        (97, 97),
        (100, 3072),
        (3072, 100),
        (129, 1000),
    ):
        make.random(f"random {rows}x{columns} ", rows, columns)
    make.spectrum("logarithmic to 1e-3, 200x200", logarithmic(200, 1e-3), 200, 200)
    make.spectrum("logarithmic to 1e-3, 60x300", logarithmic(60, 1e-3), 60, 300)


def broken_inputs(make: Maker) -> None:
    n = make.size(768)
    for name, value in (("one NaN", float("nan")), ("one infinity", float("inf"))):
        make.random(f"{name}, {n}x{n}", n, n, finite=False)
        make.made[-1].matrix[n // 2, n // 3] = value


def real_inputs(make: Maker, spectra: dict[str, list[float]], limit: int) -> None:
    n, m = make.size(768), make.size(3072)
    for key, values in list(spectra.items())[:: max(1, len(spectra) // limit) if limit else 1]:
        make.spectrum(f"{key}, {n}x{n}", values, n, n, group=f"real momentum, {n}x{n}")
        make.spectrum(f"{key}, {n}x{m}", values, n, m, group=f"real momentum, {n}x{m}")
        make.add(f"{key}, {m}x{n}", make.made[-1].matrix.T.contiguous(), group=f"real momentum, {m}x{n}")


# The exact factors and the measures, in float64 on the CPU, a matrix per thread.


def exact(one: Input) -> None:
    x = one.matrix.to("cpu", torch.float64)
    wide = x.shape[0] < x.shape[1]
    q, r = torch.linalg.qr(x.T if wide else x)
    u, s, vh = torch.linalg.svd(r, full_matrices=False)
    if one.rank < 0:  # as far as float64 tells singular values from 0
        keep = int((s > s[0] * max(x.shape) * torch.finfo(torch.float64).eps).sum())
        if keep < len(s):
            one.rank = keep
    keep = one.values
    polar = q @ (u[:, :keep] @ vh[:keep])
    one.polar = polar.T if wide else polar


def measure(one: Input, result: Tensor) -> dict[str, float | str]:
    bad = int((~torch.isfinite(result)).sum())
    if bad or not one.finite:
        return {"not finite": bad, "of": result.numel()}
    o = result.to("cpu", torch.float64)
    gram = o @ o.T if o.shape[0] <= o.shape[1] else o.T @ o
    s = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0)
    n = one.values
    norms = float(o.norm() * one.polar.norm())
    return {
        "rms": float((s[:n] - 1).square().mean().sqrt()) if n else float(s.square().mean().sqrt()),
        "1 - cos": 1 - float((o * one.polar).sum()) / norms if norms else 0.0,
        "largest": float(s[0]),
    }


# What is compared. Each takes matrices of one shape.

Orthogonalize = Callable[[Sequence[Tensor]], list[Tensor]]


def muster_set(coefficients: object) -> Orthogonalize:
    import muster.torch

    def run(matrices: Sequence[Tensor]) -> list[Tensor]:
        weights = [torch.nn.Parameter(torch.zeros_like(x, dtype=torch.float32)) for x in matrices]
        for weight, x in zip(weights, matrices):
            weight.grad = x.float()
        named = [(f"w{i}", weight) for i, weight in enumerate(weights)]
        optimizer = muster.torch.Muon(
            named, lr=1.0, momentum=0.0, nesterov=False, scale="none", coefficients=coefficients
        )
        optimizer.step()
        optimizer.synchronize()
        return [-weight.detach() for weight in weights]

    return run


def _in_chunks(f: Callable[[Tensor], Tensor], least: int) -> Orthogonalize:
    """f takes a stack. Always CHUNK matrices of at least ``least`` rows and columns: a compiled function compiles for every shape."""

    def run(matrices: Sequence[Tensor]) -> list[Tensor]:
        if min(matrices[0].shape) < least:
            raise Skipped(f"sides below {least} are left out: each shape takes seconds to compile")
        out: list[Tensor] = []
        for begin in range(0, len(matrices), CHUNK):
            part = list(matrices[begin : begin + CHUNK])
            stack = torch.stack(part + [part[0]] * (CHUNK - len(part)))
            out += f(stack).clone().float().unbind()[: len(part)]
        return out

    return run


class Skipped(Exception):
    pass


def dion() -> Orthogonalize:
    """polar_express_triton, in whichever of dion's modules it is."""
    package = importlib.import_module("dion")
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    for name in sorted(names, key=lambda name: ("polar" not in name, "newton" not in name)):
        try:
            module = importlib.import_module(f"dion.{name}")
        except (ImportError, AttributeError):  # of a module of another optimizer
            continue
        if hasattr(module, "polar_express_triton"):
            return _in_chunks(module.polar_express_triton, 700)
    raise ImportError("dion has no polar_express_triton")


def gram_newton_schulz() -> Orthogonalize:
    return _in_chunks(importlib.import_module("gram_newton_schulz").GramNewtonSchulz(), 700)


def torch_muon() -> Orthogonalize:
    function = importlib.import_module("torch.optim._muon")._zeropower_via_newtonschulz
    return lambda matrices: [function(x.float(), (3.4445, -4.7750, 2.0315), 5, 1e-7).float() for x in matrices]


def contestants(names: Iterable[str]) -> dict[str, Callable[[], Orthogonalize]]:
    found: dict[str, Callable[[], Orthogonalize]] = {f"Muster, {s}": lambda s=s: muster_set(s) for s in names}
    return found | {
        "torch.optim.Muon": torch_muon,
        "Dion, polar_express_triton": dion,
        "gram-newton-schulz": gram_newton_schulz,
    }


class Report:
    def __init__(self, folder: Path, about: dict[str, object]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.about = folder, about
        self.rows: dict[str, dict[str, dict[str, float | str]]] = {}  # by set, by input
        self.missing: dict[str, str] = {}

    def write(self, inputs: Sequence[Input]) -> None:
        whole = {"about": self.about, "missing": self.missing, "results": self.rows}
        (self.folder / "closeness.json").write_text(json.dumps(whole, indent=1) + "\n")
        (self.folder / "closeness.md").write_text(self._page(inputs))

    def _page(self, inputs: Sequence[Input]) -> str:
        sets = list(self.rows)
        out = [", ".join(f"{k}: {v}" for k, v in self.about.items()) + ".", ""]
        out += [f"Missing: {name} ({why})." for name, why in self.missing.items()] + [""]
        for title, chosen in (
            ("mean rms, worst rms; mean 1 - cos, worst; largest sigma", {i.group: None for i in inputs if i.group}),
            ("rms; 1 - cos; largest sigma", {i.name: None for i in inputs if not i.group and i.finite}),
            ("elements that are not finite", {i.name: None for i in inputs if not i.finite}),
        ):
            out += [f"| {title} | " + " | ".join(sets) + " |", "|---|" + "---|" * len(sets)]
            for name in chosen:
                members = [i for i in inputs if name in (i.group, i.name)]
                out.append(f"| {name.strip()} | " + " | ".join(self._cell(self.rows[s], members) for s in sets) + " |")
            out.append("")
        return "\n".join(out)

    @staticmethod
    def _cell(rows: dict[str, dict[str, float | str]], members: Sequence[Input]) -> str:
        found = [rows[i.name] for i in members if i.name in rows]
        if not found:
            return ""
        if any("not finite" in row for row in found):
            return ", ".join(f"{row['not finite']} of {row['of']}" for row in found if "not finite" in row)
        rms, cosine, largest = ([float(row[k]) for row in found] for k in ("rms", "1 - cos", "largest"))
        if len(found) == 1:
            return f"{rms[0]:.3f}; {cosine[0]:.4f}; {largest[0]:.2f}"
        n = len(found)
        return f"{sum(rms) / n:.3f}, {max(rms):.3f}; {sum(cosine) / n:.4f}, {max(cosine):.4f}; {max(largest):.2f}"


def by_shape(inputs: Sequence[Input]) -> dict[tuple[int, int], list[Input]]:
    out: dict[tuple[int, int], list[Input]] = {}
    for one in inputs:
        out.setdefault(one.shape, []).append(one)
    return out


def compare(
    inputs: Sequence[Input], names: Iterable[str], report: Report, end: float, pool: ThreadPoolExecutor
) -> None:
    for name, build in contestants(names).items():
        begin = time.monotonic()
        if begin > end:
            report.missing[name] = "no time was left"
            continue
        try:
            orthogonalize = build()
        except Exception as error:
            report.missing[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        rows = report.rows[name] = {}
        pending: list[tuple[Input, Tensor]] = []
        for shape, members in sorted(by_shape(inputs).items(), key=lambda item: -len(item[1])):
            if time.monotonic() > end:
                report.missing[f"{name}, {shape[0]}x{shape[1]}"] = "no time was left"
                continue
            # Peers get finite matrices only: one of them asserts it.
            members = members if name.startswith("Muster") else [i for i in members if i.finite]
            try:
                results = orthogonalize([i.matrix for i in members])
            except Skipped as why:
                report.missing.setdefault(name, str(why))
                continue
            except Exception as error:
                report.missing[f"{name}, {shape[0]}x{shape[1]}"] = f"{type(error).__name__}: {error}"[:200]
                continue
            pending += [(i, r.to("cpu", torch.float32)) for i, r in zip(members, results)]
        for (one, _), row in zip(pending, pool.map(lambda p: measure(*p), pending)):
            rows[one.name] = row
        report.write(inputs)
        print(f"{name}: {len(rows)} inputs, {time.monotonic() - begin:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spectra", type=Path, help="JSON: {spectra: {name: [singular values]}}")
    parser.add_argument("--out", type=Path, default=Path("closeness"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--seconds", type=float, default=150, help="starts nothing new after them")
    parser.add_argument("--threads", type=int, default=16, help="of the SVDs")
    parser.add_argument("--shrink", type=int, default=1, help="divides the sides of matrices")
    parser.add_argument("--limit", type=int, default=0, help="of the spectra, this many")
    options = parser.parse_args()
    begin = time.monotonic()
    make = Maker(options.device, options.shrink)
    if options.spectra:
        real_inputs(make, json.loads(options.spectra.read_text())["spectra"], options.limit)
    for kind in (earlier_inputs, hard_inputs, small_inputs, broken_inputs):
        kind(make)
    print(f"{len(make.made)} inputs after {time.monotonic() - begin:.1f} s", flush=True)
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    with ThreadPoolExecutor(options.threads) as pool:
        whole = sorted((i for i in make.made if i.finite), key=lambda i: -min(i.shape))
        list(pool.map(exact, whole))
        print(f"exact factors after {time.monotonic() - begin:.1f} s", flush=True)
        about = {"device": name, "PyTorch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
        compare(make.made, options.sets, Report(options.out, about), begin + options.seconds, pool)
    print(f"{options.out}: after {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
