"""Trains the PyTorch optimizer for a long time, and fails if a process grows.

    soak.py --seconds S --ranks 1|4 [--device cuda]

A round adds a group, changes hyperparameters and missing gradients in every step, saves, loads into an optimizer whose
parameters are cut differently, and goes on with that. The first rounds warm up; later ones must end with as many file
descriptors, as many threads and, within MEMORY, as much memory as the last of them. On CUDA the same holds of
the device's memory, and graphs must be captured again after every change.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

WARM_UP = 12
#: Resident bytes. A leak of the state of one optimizer (60 KB) per round would pass it in 800 rounds.
MEMORY = 48 << 20
#: Seconds for threads of a round's optimizers to end, which have been told to: on a busy machine some take a while.
ENDING = 60.0
DEVICE_MEMORY = 64 << 20
SHAPES = {"qkv": (48, 32), "up": (64, 32), "down": (32, 64), "embed": (50, 32), "gain": (32,)}


class Usage(NamedTuple):
    memory: int
    threads: int
    files: int
    device: int

    def text(self) -> str:
        device = f", {self.device / 2**20:.1f} MiB on the device" if self.device else ""
        return f"{self.memory / 2**20:.1f} MiB, {self.threads} threads, {self.files} files{device}"


def _threads(fewest: int) -> int:
    """How many there are, once no more than that many are left, or after ENDING."""
    end = time.monotonic() + ENDING
    while len(os.listdir("/proc/self/task")) > fewest and time.monotonic() < end:
        time.sleep(0.01)
    return len(os.listdir("/proc/self/task"))


def _usage(device: str, threads: int) -> Usage:
    """With as few threads as that, if the others end in time."""
    import torch

    gc.collect()
    running = _threads(threads)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    used = 0
    if device == "cuda":
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        used = total - free
    return Usage(resident, running, len(os.listdir("/proc/self/fd")), used)


def _grew(now: Usage, before: Usage) -> bool:
    return (
        now.threads > before.threads
        or now.files != before.files
        or now.memory > before.memory + MEMORY
        or now.device > before.device + DEVICE_MEMORY
    )


def _round(number: int, directory: Path, device: str, mesh: object) -> None:
    import torch
    from torch import nn
    from torch.distributed.tensor import DTensor, Shard

    import muster.torch

    ranks = 1 if mesh is None else mesh.size()
    rank = 0 if mesh is None else mesh.get_local_rank()

    def parameters(cut: int) -> dict[str, nn.Parameter]:
        out = {}
        for place, (name, shape) in enumerate(SHAPES.items()):
            whole = torch.full(shape, 0.5, device=device)
            if mesh is not None and (place + cut) % 2 == 0:
                part = torch.chunk(whole, ranks)[rank]
                whole = DTensor.from_local(
                    part, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
                )
            out[name] = nn.Parameter(whole)
        return out

    def optimizer(of: dict[str, nn.Parameter], matrices: list[str]) -> muster.torch.NorMuon:
        return muster.torch.NorMuon(
            [{"params": [(name, of[name]) for name in matrices]}], timeout=timedelta(seconds=120), threads=1
        )

    def add(to: muster.torch.NorMuon, of: dict[str, nn.Parameter]) -> None:
        others = [(name, of[name]) for name in ("embed", "gain")]
        to.add_param_group({"params": others, "algorithm": "adamw", "lr": 0.01})

    def train(opt: muster.torch.NorMuon, of: dict[str, nn.Parameter], steps: int) -> None:
        for step in range(steps):
            for group in opt.param_groups:
                group["lr"] = 0.02 / (1 + step % 3)
                group["weight_decay"] = 0.01 * (step % 2)
            for place, parameter in enumerate(of.values()):
                missing = (step + number) % 7 == place
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                gradient = torch.sin(local.detach() + step)
                if isinstance(parameter, DTensor):
                    gradient = DTensor.from_local(
                        gradient, mesh, [Shard(0)], run_check=False, shape=parameter.shape, stride=parameter.stride()
                    )
                parameter.grad = None if missing else gradient
            opt.step()
        if device == "cuda":
            for _ in range(6):  # equal steps, in the memory of before
                opt.step()
            opt.synchronize()
            assert opt.stats()["replayed"], "the graph was not captured again"

    first = parameters(number)
    opt = optimizer(first, ["qkv", "up", "down"])
    train(opt, {name: first[name] for name in ("qkv", "up", "down")}, 4)
    add(opt, first)
    train(opt, first, 4)
    opt.save(directory)
    second = parameters(number + 1)
    other = optimizer(second, ["qkv", "up", "down"])
    add(other, second)
    other.load(directory)
    train(other, second, 4)
    other.load_state_dict(other.state_dict())
    train(other, second, 2)


def _run(rank: int, ranks: int, seconds: float, device: str, folder: str, failed: object) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    torch.set_num_threads(1)
    mesh = None
    if ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=timedelta(seconds=120)
        )
        mesh = DeviceMesh("cpu", list(range(ranks)))
    end = time.monotonic() + seconds
    used: list[Usage] = []
    grew = False
    more = True
    while more:
        _round(len(used), Path(folder) / "checkpoint", device, mesh)
        used.append(_usage(device, used[WARM_UP - 1].threads if len(used) >= WARM_UP else sys.maxsize))
        grew = len(used) > WARM_UP and _grew(used[-1], used[WARM_UP - 1])
        more = len(used) < WARM_UP + 4 or time.monotonic() < end
        flags = torch.tensor([int(grew), int(not more)])
        if mesh is not None:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        more = flags.sum().item() == 0
    if grew:
        failed.value = 1
        for number, usage in enumerate(used):
            print(f"soak: rank {rank}: round {number}: {usage.text()}")
    if rank == 0 or grew:
        verdict = "FAILED" if grew else "flat"
        what = f"{device}, rank {rank} of {ranks}, {len(used)} rounds"
        print(f"soak: {what}: {used[WARM_UP - 1].text()}; then {used[-1].text()}: {verdict}", flush=True)
    if mesh is not None:
        dist.barrier()
        dist.destroy_process_group()


def _rank(rank: int, *arguments: object) -> None:
    try:
        _run(rank, *arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the others must not wait for this rank


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments = parser.parse_args()
    if arguments.device == "cuda" and arguments.ranks > 1:
        parser.error("--device cuda: on one rank")
    context = multiprocessing.get_context("spawn")
    failed = context.Value("i", 0)
    with tempfile.TemporaryDirectory(prefix="muster-soak-") as folder:
        given = (arguments.ranks, arguments.seconds, arguments.device, folder, failed)
        processes = [context.Process(target=_rank, args=(rank, *given)) for rank in range(arguments.ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return 1 if failed.value or any(process.exitcode != 0 for process in processes) else 0


if __name__ == "__main__":
    sys.exit(main())
