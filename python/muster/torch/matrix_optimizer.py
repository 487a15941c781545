"""An optimizer whose update rule is the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .optimizer import NorMuon
from .rule import Rule

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class MatrixOptimizer(NorMuon):
    """A rule of your own for matrices, and AdamW, Lion, Muon or NorMuon for groups that name them; on the CPU so far.

    Each matrix is brought to one rank, which calls the rule and sends the result back. The rest is as in ``NorMuon``:
    momentum, weight decay, the scale of the step, masters, clipping, overlap, plans and checkpoints.
    docs/howto/write-a-rule.md shows how to write one.

    The engine keeps the state of the rule's matrices once, on the rank that calls the rule: ``opt.state`` has only
    counters of them, and ``state_dict`` is a call of all ranks, with the entries "rule.NAME".

    Args:
        params: as for ``NorMuon``; ``muster.torch.param_groups(model)`` makes them.
        rule: an object of a class derived from ``muster.torch.Rule``.
        lr: learning rate of the groups that give none. Default 0.02.
        options: any other argument of ``NorMuon``. The strategy must be "global".

    Raises:
        TypeError: ``rule`` is no rule.
        ValueError: an argument is wrong on any rank; on all ranks.
    """

    _algorithm = "rule"

    def __init__(self, params: ParamsT, rule: Rule, lr: float = 0.02, **options: Any) -> None:
        if not isinstance(rule, Rule):
            raise TypeError(f"rule {rule!r}: expected an object of a class derived from muster.torch.Rule")
        self._rule = rule
        super().__init__(params, lr, **options)
