"""The optimizers of docs/howto/migrate.md; tests compare them with those that they replace."""

from __future__ import annotations

from typing import Any

from torch import nn

import muster.torch


def from_adamw(model: nn.Module) -> muster.torch.NorMuon:
    # [adamw]
    # before: torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    groups = muster.torch.param_groups(model, adamw_lr=3e-4, adamw_weight_decay=0.1, adamw_betas=(0.9, 0.999))
    optimizer = muster.torch.NorMuon(groups, lr=0.02, weight_decay=0.0015)  # 0.02 * 0.0015 = 3e-4 * 0.1
    # [/adamw]
    return optimizer


def adamw_only(model: nn.Module) -> muster.torch.NorMuon:
    # [adamw-only]
    adamw = {"algorithm": "adamw", "lr": 3e-4, "weight_decay": 0.1, "betas": (0.9, 0.999)}
    optimizer = muster.torch.NorMuon(model.named_parameters(), **adamw)
    # [/adamw-only]
    return optimizer


def from_torch_muon(matrices: list[Any], others: list[Any]) -> muster.torch.Muon:
    # [torch-muon]
    # before: torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1) and torch.optim.AdamW(others, lr=3e-4)
    adamw = {"algorithm": "adamw", "lr": 3e-4, "weight_decay": 0.01, "betas": (0.9, 0.999)}  # torch's defaults
    groups = [{"params": matrices}, {"params": others, **adamw}]
    optimizer = muster.torch.Muon(groups, lr=0.02, weight_decay=0.1, coefficients="jordan")
    # [/torch-muon]
    return optimizer


def from_muon_with_aux_adam(matrices: list[Any], others: list[Any]) -> muster.torch.Muon:
    # [muon-with-aux-adam]
    # before: MuonWithAuxAdam([{"params": matrices, "use_muon": True, "lr": 0.02},
    #                          {"params": others, "use_muon": False, "lr": 3e-4}])
    adamw = {"algorithm": "adamw", "lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-10}
    groups = [{"params": matrices}, {"params": others, **adamw}]
    optimizer = muster.torch.Muon(groups, lr=0.02, coefficients="jordan")
    # [/muon-with-aux-adam]
    return optimizer


def from_dion(groups: list[Any]) -> muster.torch.NorMuon:
    # [dion]
    # before: dion.NorMuon(groups, distributed_mesh=mesh, lr=0.01, weight_decay=0.01, cautious_wd=True)
    dions = {"scale": "spectral", "nesterov": False, "normalize": "rows", "decay": "cautious"}
    optimizer = muster.torch.NorMuon(groups, lr=0.01, weight_decay=0.01, **dions)
    # [/dion]
    return optimizer


def import_torch(optimizer: muster.torch.NorMuon, muon: Any, adamw: Any) -> None:
    # [import-torch]
    muster.torch.import_torch(optimizer, muon.state_dict(), adamw.state_dict())
    # [/import-torch]


def import_dion(optimizer: muster.torch.NorMuon, checkpoint: dict[str, Any]) -> None:
    # [import-dion]
    muster.torch.import_dion(optimizer, checkpoint["optimizer"])
    # [/import-dion]
