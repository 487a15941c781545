"""Muster: Muon and NorMuon across any number of ranks, for models sharded in any way.

``muster.torch`` has the optimizers and ``muster.integrations`` the classes that frameworks need in addition. Both are
imported on first use; this package alone needs no PyTorch.
"""

from typing import TYPE_CHECKING

from ._muster import CommError, DeviceError, Error, ErrorCode, Internal, InvalidArgument, ResourceError
from .build_info import Info, info

if TYPE_CHECKING:
    from types import ModuleType

    from . import integrations as integrations
    from . import torch as torch
else:

    def __getattr__(name: str) -> "ModuleType":
        if name not in ("integrations", "torch"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"muster.{name} needs PyTorch 2.7 or later, which is not installed: pip install torch", name="torch"
            ) from None


__version__ = "0.2.0"
__all__ = ["CommError", "DeviceError", "Error", "ErrorCode", "Info", "Internal", "InvalidArgument", "ResourceError", "info"]
