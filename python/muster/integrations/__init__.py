"""Classes for frameworks that need more than ``muster.torch``. Each module is imported on first use.

``muster.integrations.transformers`` and ``muster.integrations.torchtitan`` need the package of that name. Accelerate
and Lightning take the optimizers of ``muster.torch`` as they are: docs/howto/frameworks.md.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from . import torchtitan as torchtitan
    from . import transformers as transformers
else:

    def __getattr__(name: str) -> "ModuleType":
        if name not in ("torchtitan", "transformers"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name not in ("torch", name):
                raise
            raise ModuleNotFoundError(
                f"{__name__}.{name} needs {error.name}, which is not installed: pip install {error.name}",
                name=error.name,
            ) from None
