"""The wrapper that torch puts around the step of an optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.autograd import profiler
from torch.optim.optimizer import Optimizer, _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def quiet_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
    """Calls torch's ``Optimizer.profile_hook_step`` only if a profiler is active or hooks are registered.

    The wrapper records the name of every step, which takes longer than all Python of this package. An
    ``ExecutionTraceObserver`` without a profiler cannot be detected, and misses these names.
    """
    hooked = Optimizer.profile_hook_step(func)

    @functools.wraps(func)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = (
            _profiler_enabled()  # in this thread
            or profiler._is_profiler_enabled
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
        )
        return hooked(self, *args, **kwargs) if wanted else func(self, *args, **kwargs)

    return step
