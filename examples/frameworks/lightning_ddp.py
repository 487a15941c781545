"""NorMuon with Lightning, under DDP. `--save-every` is the length of an epoch: Lightning resumes at the end of one.

    torchrun --nproc-per-node 2 lightning_ddp.py /tmp/out
    torchrun --nproc-per-node 2 lightning_ddp.py /tmp/out --resume
"""

from __future__ import annotations

import os
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_gpt import Text, TinyGPT, parse
from torch import Tensor
from torch.utils.data import DataLoader, Subset

import muster.torch


class Module(lightning.LightningModule):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.model, self.steps = TinyGPT(), steps

    def training_step(self, batch: Tensor) -> Tensor:
        loss = self.model(batch)
        mean = self.all_gather(loss.detach()).mean()
        self.print(f"step {self.global_step + 1} loss {mean.item()!r}")
        return loss

    # [optimizer]
    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = muster.torch.NorMuon(muster.torch.param_groups(self.model, adamw_lr=2e-3), lr=0.02)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    # [/optimizer]


def main() -> None:
    options = parse(__doc__)
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        strategy="ddp",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_epochs=options.steps // options.save_every,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(options.folder, filename="{step}", save_last=True, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
    )
    rows = Subset(Text(), range(options.save_every * 8 * trainer.world_size))  # an epoch
    path = f"{options.folder}/last.ckpt" if options.resume else None
    trainer.fit(Module(options.steps), DataLoader(rows, batch_size=8), ckpt_path=path)


if __name__ == "__main__":
    main()
