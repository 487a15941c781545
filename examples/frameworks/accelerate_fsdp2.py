"""NorMuon with accelerate, under FSDP2: `prepare` shards the model and replaces the tensors of the optimizer.

    torchrun --nproc-per-node 2 accelerate_fsdp2.py /tmp/out
    torchrun --nproc-per-node 2 accelerate_fsdp2.py /tmp/out --resume
"""

from __future__ import annotations

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from tiny_gpt import Text, TinyGPT, parse
from torch.utils.data import DataLoader

import muster.torch


def main() -> None:
    options = parse(__doc__)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
    )
    accelerator = Accelerator(fsdp_plugin=plugin)
    torch.manual_seed(0)
    model = TinyGPT()
    # [optimizer]
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model, adamw_lr=2e-3), lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / options.steps)
    accelerator.register_for_checkpointing(schedule)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(Text(), batch_size=8))
    # [/optimizer]
    first = 0
    if options.resume:
        accelerator.load_state(f"{options.folder}/state")
        first = schedule.last_epoch
    for step, batch in enumerate(accelerator.skip_first_batches(batches, first), first + 1):
        loss = model(batch)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        accelerator.print(f"step {step} loss {accelerator.reduce(loss.detach(), 'mean').item()!r}")
        if step % options.save_every == 0 and step < options.steps:
            accelerator.save_state(f"{options.folder}/state")
        if step == options.steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
