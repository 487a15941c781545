"""Processes as ranks of a Gloo group, for tests: they fail instead of hanging."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

# Processes are forked from one that has imported torch, once.
_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed.tensor.parallel", "torch.distributed.fsdp", "muster.torch"])


def _rank(worker: Callable[..., Any], rank: int, ranks: int, store: str, pipe: Connection, args: tuple) -> None:
    torch.set_num_threads(1)
    os.environ["NCCL_HOSTID"] = f"rank {rank}"  # ranks that share a GPU are strangers to NCCL
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    try:
        pipe.send((None, worker(rank, ranks, *args)))
    except BaseException:
        pipe.send((traceback.format_exc(), None))
        raise SystemExit(1) from None  # the others' calls must not wait for this rank
    with contextlib.suppress(RuntimeError):  # a test may have broken its group
        dist.barrier()  # a process that leaves earlier can make another abort
    dist.destroy_process_group()


def run_ranks(
    ranks: int, worker: Callable[..., Any], *args: Any, timeout: float = 300, may_die: int | None = None
) -> list[Any]:
    """``worker(rank, ranks, *args)`` of every rank; raises what any of them raised. None of a rank that may die."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            mine, theirs = _context.Pipe(duplex=False)
            process = _context.Process(target=_rank, args=(worker, rank, ranks, f"{folder}/store", theirs, args))
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        deadline = time.monotonic() + timeout
        results: dict[int, Any] = {}
        try:
            while len(results) < ranks:
                ready = wait([pipes[r] for r in range(ranks) if r not in results], deadline - time.monotonic())
                if not ready:
                    raise TimeoutError(f"ranks {sorted(set(range(ranks)) - set(results))} of {ranks} are late")
                for rank in range(ranks):
                    if pipes[rank] not in ready or rank in results:
                        continue
                    try:
                        error, results[rank] = pipes[rank].recv()
                    except EOFError:
                        error, results[rank] = None if rank == may_die else "it died", None
                    if error is not None:
                        raise AssertionError(f"rank {rank} of {ranks}: {error}")
            for process in processes:
                process.join(max(1.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
    return [results[rank] for rank in range(ranks)]
