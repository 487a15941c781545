"""Muon and NorMuon as PyTorch optimizers.

    import muster.torch
    opt = muster.torch.NorMuon(muster.torch.param_groups(model), lr=0.02)

Layouts are read from the tensors: DTensors (FSDP2, tensor and expert parallelism, any mix), plain tensors on a process
group (DDP), or plain tensors alone. docs/reference/python.md lists what is supported.
"""

from . import groups
from .ddp import ddp_hook
from .default_groups import param_groups
from .foreign import import_dion, import_torch
from .matrix_optimizer import MatrixOptimizer
from .monitoring import ParameterStats
from .optimizer import Muon, NorMuon
from .orthogonalization import orthogonalize
from .plan import Plan
from .plan_options import PlanOptions
from .qk_clip import HeadRows, QKHeads
from .rule import Rule
from .timeline import profile
from .versions import info

__all__ = [
    "HeadRows",
    "MatrixOptimizer",
    "Muon",
    "NorMuon",
    "ParameterStats",
    "Plan",
    "PlanOptions",
    "QKHeads",
    "Rule",
    "ddp_hook",
    "groups",
    "import_dion",
    "import_torch",
    "info",
    "orthogonalize",
    "param_groups",
    "profile",
]
