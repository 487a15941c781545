"""The spectral cap, emulated: every rounding of the half-precision kernels in numpy. Prints the tables of docs/lab/spectral-cap-2026-11.md.

    python3 benchmarks/cap_emulation.py --spectra momentum_spectra.json real real-long hard hard-long
    python3 benchmarks/cap_emulation.py --spectra momentum_spectra.json --plot docs/explanation

src/kernels/spectral_cap.h defines the cap. `real`: the measured spectra, square matrices in bf16. `real-long`: twice as long, the Gram form in fp16.
`hard`: spectra that are made up. `choices`: capped3 with parts of the cap replaced. `--every 6` takes each sixth of the measured spectra. Needs numpy; a thread per process, two processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

Array = np.ndarray
Steps = Sequence[tuple[float, float, float]]

POLAR_EXPRESS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
JORDAN = [(3.4445, -4.7750, 2.0315)] * 5
CAPPED3 = [(7.859615, -22.699111, 16.713835), (3.333444, -2.414054, 0.473357), (2.36781, -1.69214, 0.403417)]
CAPPED4 = [
    (8.340981, -24.597368, 18.223025),
    (3.912477, -2.806614, 0.513492),
    (3.32201, -2.406086, 0.472552),
    (2.356587, -1.68289, 0.40259),
]
POLES = [
    (1.5314329810549612, 2.1057724793059793),
    (128.00472036710346, 15.090007938080543),
    (10699.185724281857, 176.00996502182198),
]
FLOOR, RIDGE, LEVEL = 2.0**-14, 2.0**-22, 0.3


def bf16(x: Array) -> Array:
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + ((bits >> 16) & 1) + 0x7FFF) & 0xFFFF0000).view(np.float32)


def fp16(x: Array) -> Array:
    return np.float32(np.float16(x))


def signs(n: int, r: int) -> Array:
    row, word = np.arange(n, dtype=np.uint32)[:, None], np.arange((r + 31) // 32, dtype=np.uint32)[None]
    with np.errstate(over="ignore"):
        h = (row + np.uint32(1)) * np.uint32(0x9E3779B9) + word * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
        h = (h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B)
        h = h ^ (h >> np.uint32(16))
    bits = (h[:, :, None] >> np.arange(32, dtype=np.uint32)) & 1
    return 1 - 2 * bits.reshape(n, -1)[:, :r].astype(np.float32)


def cap(
    x: Array,
    r: int,
    level: float = LEVEL,
    rounded: Callable[[Array], Array] = bf16,
    products: int = 2,
    exact: bool = False,
) -> Array:
    """x, wide or square, with its r largest singular values capped; of a norm that its precision holds.

    products: with X or X^T, that the sketch goes through. exact: the inverse root by an eigensolver.
    """
    n = x.shape[0]
    identity = n <= r
    r = min(n, r)
    norm = np.linalg.norm(x)
    if norm == 0:
        return x

    def two(y: Array) -> Array:  # an operand as two numbers of half precision
        high = rounded(y)
        return high + rounded(y - high)

    def gram(y: Array) -> Array:
        g = (y.T @ y).astype(np.float64)
        return g + RIDGE * np.trace(g) * np.eye(r)

    def orth(y: Array) -> Array:
        return rounded(y @ np.linalg.inv(np.linalg.cholesky(gram(y))).T.astype(np.float32))

    if identity:
        q = np.eye(n, dtype=np.float32)
    else:
        q = signs(x.shape[products % 2], r)
        for i in reversed(range(products)):
            q = orth(rounded((x.T if i % 2 else x) @ q / norm))
    e = two(256 / norm * (q.T @ x)) / 256
    own, t = gram(q), gram(e.T)
    d = FLOOR * np.trace(t)
    inverse = np.linalg.inv(t / d + own)
    c = level * np.sqrt(r / np.sum(inverse * own))
    if exact:
        lower = np.linalg.inv(np.linalg.cholesky(own))
        values, vectors = np.linalg.eigh(lower @ (t / d + own) @ lower.T)
        h = lower.T @ (vectors / np.sqrt(values)) @ vectors.T @ lower
    else:
        h = sum(weight * np.linalg.inv(t / d + (1 + shift) * own) for shift, weight in POLES)
    m = (np.linalg.inv(own) - c * h).astype(np.float32)
    out = x / norm - q @ (two(256 * (m @ e)) / 256)
    after = np.linalg.norm(out)
    scale = 2.0 ** np.floor(8 - np.log2(after)) if rounded is fp16 else 1 / after
    return rounded(scale * out)


def frobenius(x: Array) -> Array:
    return x / (1.02 * np.linalg.norm(x))


def tight(x: Array) -> Array:
    return x / (1.02 * np.sqrt(np.linalg.norm(x @ x.T)))


def plain(x: Array) -> Array:
    return x / np.linalg.norm(x)


def standard_form(x: Array, steps: Steps) -> Array:
    x = bf16(x)
    for a, b, c in steps:
        gram = bf16(x @ x.T)
        x = bf16(a * x + bf16(b * gram + c * (gram @ gram)) @ x)
    return x


def gram_form(x: Array, steps: Steps, restart: bool = True) -> Array:
    def symmetric(y: Array) -> Array:
        return np.tril(y) + np.tril(y, -1).T

    identity = np.eye(len(x), dtype=np.float32)
    x = fp16(x)
    r, q = fp16(symmetric(x @ x.T)), identity
    for i, (a, b, c) in enumerate(steps):
        if restart and i == 2:
            x = fp16(q @ x)
            r, q = fp16(symmetric(x @ x.T)), identity
        z = fp16(symmetric(b * r + c * (r @ r)))
        q = fp16(z + a * identity) if q is identity else fp16(symmetric(q @ z) + a * q)
        if i + 1 < len(steps) and not (restart and i == 1):
            t = fp16(symmetric(r @ z) + a * r)
            r = fp16(symmetric(z @ t) + a * t)
    return fp16(q @ x)


Variants = dict[str, Callable[[Array], Array]]


def variants(long: bool, columns: Sequence[int], levels: Sequence[float]) -> Variants:
    iterate = gram_form if long else lambda x, steps, restart=True: standard_form(x, steps)
    out: Variants = {
        "polar_express, five": lambda x: iterate(frobenius(x), POLAR_EXPRESS),
        "polar_express_tight, five": lambda x: iterate(tight(x), POLAR_EXPRESS),
        "jordan, five": lambda x: iterate(plain(x), JORDAN),
        "steps of capped3, no cap": lambda x: iterate(tight(x), CAPPED3, False),
        "steps of capped4, no cap": lambda x: iterate(tight(x), CAPPED4),
    }
    rounded = fp16 if long else bf16
    for r in columns:
        for level in levels:
            name = f"r = {r}, level {level:g}"
            out[f"{name}, three"] = lambda x, r=r, v=level: iterate(tight(cap(x, r, v, rounded)), CAPPED3, False)
            out[f"{name}, four"] = lambda x, r=r, v=level: iterate(tight(cap(x, r, v, rounded)), CAPPED4)
            if long and level == LEVEL:
                out[f"{name}, four, no restart"] = lambda x, r=r, v=level: iterate(
                    tight(cap(x, r, v, rounded)), CAPPED4, False
                )
    return out


def choices() -> Variants:
    """Of the cap's parts, for square matrices and three steps."""

    def three(**parts: object) -> Callable[[Array], Array]:
        return lambda x: standard_form(tight(cap(x, 96, **parts)), CAPPED3)

    return {
        "polar_express, five": lambda x: standard_form(frobenius(x), POLAR_EXPRESS),
        "the cap of capped3": three(),
        "one product": three(products=1),
        "three products": three(products=3),
        "four products": three(products=4),
        "inverse root by an eigensolver": three(exact=True),
        "Frobenius norm after the cap": lambda x: standard_form(frobenius(cap(x, 96)), CAPPED3),
    }


def orthogonal(rows: int, columns: int, draw: np.random.Generator) -> Array:
    q, r = np.linalg.qr(draw.standard_normal((rows, columns)))
    return q * np.sign(np.diag(r))


def matrix(spectrum: Array | None, long: bool, seed: int, n: int = 768) -> Array:
    """As a step gets it: rounded to bf16. None: random elements."""
    draw = np.random.default_rng(seed)
    columns = 2 * n if long else n
    if spectrum is None:
        return bf16(draw.standard_normal((n, columns)).astype(np.float32))
    u, v = orthogonal(n, n, draw), orthogonal(columns, n, draw)
    return bf16(((u * np.asarray(spectrum)) @ v.T).astype(np.float32))


def measure(result: Array, polar: Array) -> tuple[float, float, float]:
    o = result.astype(np.float64)
    s = np.sqrt(np.maximum(np.linalg.eigvalsh(o @ o.T), 0))
    cosine = (o * polar).sum() / np.linalg.norm(o) / np.linalg.norm(polar)
    return float(np.sqrt(((s - 1) ** 2).mean())), float(1 - cosine), float(s.max())


def hard_spectra(n: int = 768) -> dict[str, Array | None]:
    gamma = np.sort(np.random.default_rng(3).gamma(0.5, size=n))[::-1]
    out: dict[str, Array | None] = {"random": None, "all equal": np.ones(n), "linear": np.linspace(1, 1 / n, n)}
    out |= {f"logarithmic to 1e-{e}": np.logspace(0, -e, n) for e in (3, 6, 9)}
    out |= {"gamma": gamma / gamma[0], "half rank": np.r_[np.ones(n // 2), np.zeros(n // 2)]}
    out |= {"half rank, 1 to 1/2": np.r_[np.linspace(1, 0.5, n // 2), np.zeros(n // 2)]}
    out |= {"8 equal over 1e-4 to 1e-10": np.r_[np.ones(8), np.logspace(-4, -10, n - 8)]}
    for rest in (1e-2, 1e-3):
        for top in (2, 24, 32, 33, 64, 96, 97, 128, 200):
            out[f"{top} equal over {rest:g}"] = np.r_[np.ones(top), np.full(n - top, rest)]
    return out


Job = tuple[str, object, bool, int, tuple[int, ...], tuple[float, ...]]


def judge(job: Job) -> tuple[str, dict[str, tuple[float, float, float]]]:
    name, spectrum, long, seed, columns, levels = job
    x = matrix(None if spectrum is None else np.array(spectrum), long, seed)
    u, _, vt = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    polar = u @ vt
    chosen = variants(long, columns, levels) if columns else choices()
    return name, {k: measure(f(x), polar) for k, f in chosen.items()}


def run(spectra: dict[str, object], long: bool, columns: tuple[int, ...], levels: tuple[float, ...]) -> list:
    jobs: list[Job] = [(k, s, long, i, columns, levels) for i, (k, s) in enumerate(spectra.items())]
    with multiprocessing.Pool(2) as pool:
        return pool.map(judge, jobs, chunksize=1)


def means(rows: list) -> None:
    print("| | rms, mean | rms, worst | 1 - cos, mean | 1 - cos, worst | largest | closer than polar_express on |")
    print("|---|---|---|---|---|---|---|")
    base = np.array([row["polar_express, five"][1] for _, row in rows])
    for name in rows[0][1]:
        rms, cosine, largest = np.array([row[name] for _, row in rows]).T
        mean = f"{rms.mean():.3f} | {rms.max():.3f} | {cosine.mean():.4f} | {cosine.max():.3f}"
        print(f"| {name} | {mean} | {largest.max():.2f} | {(cosine < base).sum()} |")


def each(rows: list) -> None:
    names = list(rows[0][1])
    print(f"| rms; 1 - cos; largest | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for spectrum, row in rows:
        print(f"| {spectrum} | " + " | ".join("{:.3f}; {:.4f}; {:.2f}".format(*row[k]) for k in names) + " |")


def plot(spectra: dict[str, list[float]], key: str, folder: Path) -> None:
    """Singular values of one measured matrix as it is, capped, and after the steps."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "torch"))
    from svg import Line, Plot

    x = matrix(np.array(spectra[key]), False, 1)
    n = len(x)

    def values(y: Array) -> Array:
        return np.linalg.svd(y.astype(np.float64), compute_uv=False)

    capped = tight(cap(x, 96))
    before, after = values(frobenius(x)), values(capped)
    five, three = values(standard_form(frobenius(x), POLAR_EXPRESS)), values(standard_form(capped, CAPPED3))
    places = list(range(1, n + 1, 6))

    def line(name: str, y: Array, dashed: bool = False) -> Line:
        return Line(name, places, [float(y[i - 1]) for i in places], dashed=dashed)

    logs = [line("polar_express", np.log10(before)), line("capped3", np.log10(after))]
    title = "What the first step gets: singular values, log10"
    Plot(title, "number of the singular value, largest first", "log10 of it", logs).write(
        folder / "spectral_cap_before.svg"
    )
    ends = [line("polar_express, five steps", five), line("capped3, three steps", three)]
    title = "What the last step leaves: singular values; 1 is exact"
    Plot(title, "number of the singular value, largest first", "singular value", ends).write(
        folder / "spectral_cap_after.svg"
    )
    print(f"{key}: largest / median {spectra[key][0] / spectra[key][n // 2]:.0f}; below 0.5 after the steps:")
    print(f"polar_express {int((five < 0.5).sum())} of {n}, capped3 {int((three < 0.5).sum())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="real|real-long|hard|hard-long|choices")
    parser.add_argument("--spectra", type=Path, required=True, help="JSON: {spectra: {name: [singular values]}}")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of the measured spectra, one of N")
    parser.add_argument("--columns", type=int, nargs="*", default=[32, 64, 96, 128])
    parser.add_argument("--levels", type=float, nargs="*", default=[LEVEL])
    parser.add_argument("--plot", type=Path, metavar="FOLDER")
    parser.add_argument("--plot-of", default="100/6.up.weight", metavar="SPECTRUM")
    options = parser.parse_args()
    spectra = json.loads(options.spectra.read_text())["spectra"]
    columns, levels = tuple(options.columns), tuple(options.levels)
    if options.plot:
        plot(spectra, options.plot_of, options.plot)
    for table in options.tables:
        begin, long = time.monotonic(), table.endswith("-long")
        if table == "choices" or table.startswith("real"):
            chosen = {k: s for i, (k, s) in enumerate(spectra.items()) if i % options.every == 0}
            rows = run(chosen, long, () if table == "choices" else columns, levels)
            print(f"{table}: {len(rows)} spectra")
            means(rows)
        else:
            rows = run(hard_spectra(), long, columns, levels)
            print(f"{table}:")
            each(rows)
        print(f"({time.monotonic() - begin:.0f} s)\n", flush=True)


if __name__ == "__main__":
    main()
