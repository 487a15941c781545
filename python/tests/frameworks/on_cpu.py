"""Runs an example as a user would on GPUs, on CPU ranks over Gloo: `torchrun on_cpu.py EXAMPLE ARGUMENTS...`.

accelerate and torchtitan expect an accelerator. What they ask it for is replaced here, so that examples need no line
about the CPU.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist


def _accelerate() -> None:
    """accelerate takes DDP on the CPU, whatever the plugin; FSDP2 itself runs there."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)


def _torchtitan() -> None:
    """torchtitan reads the device when it is imported, and attention for GPUs alone is replaced with that of torch."""
    torch._utils._get_available_device_type = lambda: "cpu"
    cpu: Any = torch.cpu
    cpu.current_device = lambda: 0
    cpu.get_device_name = lambda _: "CPU"
    cpu.get_device_properties = lambda _: SimpleNamespace(total_memory=1 << 30)
    cpu.memory_stats = lambda _: {}
    cpu.empty_cache = cpu.reset_peak_memory_stats = lambda: None

    import torchtitan.distributed.utils
    import torchtitan.models.llama3
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.models.common.attention import ScaledDotProductAttention

    torchtitan.models.llama3.get_attention_config = lambda _: ScaledDotProductAttention.Config()
    torchtitan.distributed.utils.set_pg_timeouts = lambda **_: None  # needs torch.distributed.set_timeout, after 2.13
    set_factor = FSDPModule.set_gradient_divide_factor

    def set_factor_and_sum(self: FSDPModule, factor: float) -> None:
        set_factor(self, factor)
        self.set_force_sum_reduction_for_comms(True)  # Gloo has no PREMUL_SUM

    FSDPModule.set_gradient_divide_factor = set_factor_and_sum


def main() -> None:
    script = Path(sys.argv[1]).resolve()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(script.parent))
    torch.set_num_threads(1)
    if script.stem.startswith("accelerate"):
        _accelerate()
    if script.stem.startswith("torchtitan"):
        _torchtitan()
    runpy.run_path(str(script), run_name="__main__")
    if dist.is_initialized():
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a process that ends Python right after collectives of Gloo can abort (pytorch #190489)


if __name__ == "__main__":
    main()
