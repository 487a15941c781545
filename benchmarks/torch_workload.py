"""NorMuon steps in PyTorch on the matrices of a workload: time per step, and memory beyond weights and gradients.

    python3 benchmarks/torch_workload.py a b c
    python3 benchmarks/torch_workload.py a b c --coefficients polar_express capped4 capped3 --kernels
    for i in 1 2 3 4 5; do PYTHONPATH=old python3 ... b; PYTHONPATH=new python3 ... b; done     # two versions in turn

Prints a JSON line per workload and set of coefficients: the median of the steps, on the device and on the host; the bytes that the driver says
are gone (cudaMemGetInfo) since before construction, and what momentum and statistics take. Weights are f32. ``--kernels`` adds the time of each kernel in one more step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

WARM_UP = 10


def shapes(workload: str) -> list[tuple[int, int]]:
    model = json.loads((Path(__file__).parent / "models" / f"workload-{workload}.json").read_text())
    return [tuple(p["shape"]) for p in model["parameters"] for _ in range(p["layers"])]


def kernel_times(optimizer: torch.optim.Optimizer) -> dict[str, list[float]]:
    """Milliseconds and launches of one step by kernel, the longest first. Lanes overlap, so the sum exceeds the step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        optimizer.step()
        torch.cuda.synchronize()
    rows = [(e.key, e.device_time_total / 1e3, e.count) for e in profile.key_averages() if e.device_time_total > 0]
    return {name[:120]: [round(ms, 4), count] for name, ms, count in sorted(rows, key=lambda row: -row[1])}


def measure(workload: str, coefficients: str, options: argparse.Namespace) -> dict[str, object]:
    import muster.torch

    cuda = options.device == "cuda"
    sizes = [(rows // options.shrink, columns // options.shrink) for rows, columns in shapes(workload)]
    weights = [nn.Parameter(torch.randn(size, device=options.device)) for size in sizes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    free = torch.cuda.mem_get_info()[0] if cuda else 0
    optimizer = muster.torch.NorMuon([(f"w{i}", w) for i, w in enumerate(weights)], normalize="rows", coefficients=coefficients)
    device_ms, host_ms = [], []
    for step in range(WARM_UP + options.steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if cuda else (None, None)
        if cuda:
            torch.cuda.synchronize()
            begin.record()
        start = time.perf_counter()
        optimizer.step()
        host = time.perf_counter() - start
        if cuda:
            end.record()
            torch.cuda.synchronize()
        if step + 1 == WARM_UP:
            taken = free - torch.cuda.mem_get_info()[0] if cuda else 0
        elif step >= WARM_UP:
            host_ms.append(1e3 * host)
            device_ms.append(begin.elapsed_time(end) if cuda else 1e3 * host)
    row: dict[str, object] = {
        "workload": workload,
        "coefficients": coefficients,
        "step_ms": round(statistics.median(device_ms), 4),
        "host_ms": round(statistics.median(host_ms), 4),
        "taken_bytes": taken,
        "state_bytes": sum(4 * (rows * columns + rows) for rows, columns in sizes),
        "scratch_bytes": optimizer.plan(verbose=False)["scratch_bytes_max"],
    }
    return row | ({"kernels": kernel_times(optimizer)} if options.kernels else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", choices=("a", "b", "c"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--coefficients", nargs="+", default=["polar_express"], help="sets, in turn")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--shrink", type=int, default=1, help="divides both sides of every matrix")
    options = parser.parse_args()
    for workload in options.workloads:
        for coefficients in options.coefficients:
            print(json.dumps(measure(workload, coefficients, options)), flush=True)


if __name__ == "__main__":
    main()
