"""What a step launches on ranks that share one GPU, by strategy: exchanges, kernels, NCCL's kernels, CUDA launches, and host time.

    python3 benchmarks/launch_counts.py --ranks 2
    python3 benchmarks/launch_counts.py --ranks 2 --device cpu --comm gloo --width 96     # without a GPU: exchanges and host time

The matrices are those of GPT-2 small (12 layers), sharded by rows as FSDP2 does. Every rank has a NCCL_HOSTID of its own, so that NCCL lets them share
the GPU; exchanges then go over sockets, and times of steps mean little. Host time is how long step() takes to return, the median of ``--steps``.
Counts are of one step after those, from PyTorch's profiler, on rank 0. Prints one JSON line per strategy, and a table last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

WARM_UP = 6
STRATEGIES = ("chunked", "grouped", "megabatch", "global")
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


def shapes(width: int) -> list[tuple[int, int]]:
    return [(width, width)] * 48 + [(4 * width, width)] * 12 + [(width, 4 * width)] * 12


def counts(step: Any) -> dict[str, int]:
    """Of one step: kernels and copies on the device, and calls that launched them."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        torch.cuda.synchronize()
    on_device = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    calls = [e.name for e in profile.events() if e.name in LAUNCHES]
    return {
        "kernels": len(on_device),
        "nccl_kernels": sum("nccl" in e.name.lower() for e in on_device),
        "launches": len(calls),
        "graph_launches": sum(name == "cudaGraphLaunch" for name in calls),
    }


def measure(strategy: str, mesh: Any, options: argparse.Namespace) -> dict[str, object]:
    import muster.torch

    torch.manual_seed(0)
    weights = []
    for size in shapes(options.width):
        local = torch.randn(size[0] // mesh.size(), size[1], device=options.device)
        weight = nn.Parameter(DTensor.from_local(local, mesh, [Shard(0)], run_check=False))
        weight.grad = DTensor.from_local(torch.randn_like(local), mesh, [Shard(0)], run_check=False)
        weights.append(weight)
    named = [(f"w{i}", weight) for i, weight in enumerate(weights)]
    plan = muster.torch.PlanOptions(strategy=strategy)
    optimizer = muster.torch.NorMuon(named, normalize="rows", plan=plan, graph=options.graph == "on", timeout=timedelta(seconds=120))
    host_ms = []
    for step in range(WARM_UP + options.steps):
        optimizer.synchronize()
        dist.barrier()
        start = time.perf_counter()
        optimizer.step()
        if step >= WARM_UP:
            host_ms.append(1e3 * (time.perf_counter() - start))
    optimizer.synchronize()
    stats = optimizer.stats()
    row: dict[str, object] = {"strategy": strategy, "ranks": mesh.size(), "graph": options.graph}
    row |= {key: stats[key] for key in ("exchanges", "messages_sent")}
    row["host_ms"] = round(statistics.median(host_ms), 3)
    return row | (counts(optimizer.step) if options.device == "cuda" else {})


def run(rank: int, options: argparse.Namespace, folder: str) -> None:
    os.environ["NCCL_HOSTID"] = str(rank)
    torch.set_num_threads(1)
    dist.init_process_group(options.comm, init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks)
    mesh = init_device_mesh(options.device, (options.ranks,))
    rows = []
    for strategy in options.strategies:
        rows.append(measure(strategy, mesh, options))
        if rank == 0:
            print(json.dumps(rows[-1]), flush=True)
    if rank == 0:
        columns = list(rows[0])
        print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for row in rows:
            print(f"| {' | '.join(str(row[c]) for c in columns)} |")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--comm", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--graph", default="on", choices=("on", "off"))
    parser.add_argument("--width", type=int, default=768, help="of the model; a multiple of the ranks")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-counts-") as folder:
        multiprocessing.spawn(run, (options, folder), nprocs=options.ranks)


if __name__ == "__main__":
    main()
