"""Muster: Muon and NorMuon across any number of ranks, for models sharded in any way.

``import muster.torch`` for the optimizers; this package alone needs no PyTorch.
"""

from ._muster import CommError, DeviceError, Error, Internal, InvalidArgument

__version__ = "0.1.0"
__all__ = ["CommError", "DeviceError", "Error", "Internal", "InvalidArgument"]
