"""NorMuon in the Trainer of Hugging Face transformers, under DDP.

    torchrun --nproc-per-node 2 transformers_trainer.py /tmp/out
    torchrun --nproc-per-node 2 transformers_trainer.py /tmp/out --resume
"""

from __future__ import annotations

import torch
from tiny_gpt import Text, parse
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from muster.integrations.transformers import ConsolidateState, from_arguments


def main() -> None:
    options = parse(__doc__)
    set_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes))
    args = TrainingArguments(
        output_dir=options.folder,
        max_steps=options.steps,
        save_steps=options.save_every,
        logging_steps=1,
        learning_rate=0.02,  # of the matrices
        weight_decay=0.1,
        per_device_train_batch_size=8,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    # [trainer]
    trainer = Trainer(
        model,
        args,
        train_dataset=[{"input_ids": row, "labels": row} for row in Text()],
        optimizer_cls_and_kwargs=from_arguments(args, adamw_lr=2e-3, replicate_state=False),
        callbacks=[ConsolidateState()],  # for replicate_state=False: ranks divide the state, and rank 0 saves it
    )
    # [/trainer]
    trainer.train(resume_from_checkpoint=options.resume)
    if trainer.is_world_process_zero():
        for entry in trainer.state.log_history:
            if "loss" in entry:
                print(f"step {entry['step']} loss {entry['loss']!r}")


if __name__ == "__main__":
    main()
