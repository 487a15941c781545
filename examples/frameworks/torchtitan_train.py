"""NorMuon in torchtitan, under FSDP2: a Llama 3 of two layers. The one line about Muster is `optimizer=`.

    torchrun --nproc-per-node 2 torchtitan_train.py /tmp/out
    torchrun --nproc-per-node 2 torchtitan_train.py /tmp/out     # goes on from the last checkpoint in the folder
"""

from __future__ import annotations

import torch
from tiny_gpt import parse
from titan_bytes import Bytes, BytesLoader
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from muster.integrations.torchtitan import MusterOptimizers


def main() -> None:
    options = parse(__doc__)
    init_logger()
    model = model_registry("debugmodel")
    model.model.layers = model.model.layers[:2]
    config = Trainer.Config(
        model_spec=model,
        # [optimizer]
        optimizer=MusterOptimizers.Config(lr=0.02, weight_decay=0.1, adamw_lr=2e-3),
        # [/optimizer]
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
        training=TrainingConfig(local_batch_size=2, seq_len=64, steps=options.steps, disable_cuda_graphs=True),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        loss=CrossEntropyLoss.Config(global_vocab_size=2048),
        tokenizer=Bytes.Config(),
        dataloader=BytesLoader.Config(),
        metrics=MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(enable=True, interval=options.save_every, last_save_model_only=False),
        debug=DebugConfig(seed=0),
        dump_folder=options.folder,
    )
    trainer = config.build()
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
