"""Muster: Muon and NorMuon across any number of ranks, for models sharded in any way.

``import muster.torch`` for the optimizers; this package alone needs no PyTorch.
"""

from ._muster import CommError, DeviceError, Error, Internal, InvalidArgument
from .build_info import Info, info

__version__ = "0.1.0"
__all__ = ["CommError", "DeviceError", "Error", "Info", "Internal", "InvalidArgument", "info"]
