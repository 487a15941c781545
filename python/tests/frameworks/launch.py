"""What the launchers of the frameworks (torchrun, accelerate launch) tell a rank."""

from __future__ import annotations

import os


def as_torchrun(rank: int, ranks: int) -> None:
    """Sets torchrun's environment. The process group exists already, so that the address is never used."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="test",
        OMP_NUM_THREADS="1",
        TOKENIZERS_PARALLELISM="false",
    )
