"""Ranks that are missing, late, or at another call: an error in time on every rank that is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from ranks import run_ranks
from test_ranks import _planned, _sharded

import muster
import muster.torch


def _state_dict_on_one_rank_only(rank: int, ranks: int) -> None:
    sharded, averaged = _planned(), _planned(grad_sync=True, timeout=timedelta(seconds=2))
    if rank == 0:
        assert sharded.state_dict()["state"][0]["momentum"].to_local().shape == (3, 4)
        with pytest.raises(muster.CommError, match="replicate_state=True.*consolidate_state_dict"):
            averaged.state_dict()
        # It stays what it is, at once.
        with pytest.raises(muster.CommError):
            averaged.step()
    else:
        time.sleep(4)


def _one_rank_alone(rank: int, ranks: int) -> None:
    """It waits by the optimizer's timeout, and ends: the process group would wait for a minute."""
    parameters, short = [("w", _sharded())], {"timeout": timedelta(seconds=2)}
    if rank == 0:
        with pytest.raises(muster.CommError, match="^construction: rank 1 had not arrived after [2-9][.]. s "):
            muster.torch.NorMuon(parameters, **short)
        # What is wrong with its own input is what it says.
        with pytest.raises(ValueError, match="wire 'f8': expected one of"):
            muster.torch.NorMuon(parameters, wire="f8", **short)
    else:
        time.sleep(6)


def _one_rank_late(rank: int, ranks: int) -> None:
    """Its messages are not taken for those of what others do meanwhile."""
    parameters, short = [("w", _sharded())], {"timeout": timedelta(seconds=2)}
    if rank == 0:
        with pytest.raises(ValueError, match="wire 'f8': expected one of"):
            muster.torch.NorMuon(parameters, wire="f8", **short)
    else:
        time.sleep(4)
    with pytest.raises((muster.CommError, ValueError)):
        muster.torch.NorMuon(parameters, **short)


def _load_on_one_rank_only(rank: int, ranks: int) -> None:
    optimizer = _planned(grad_sync=True, timeout=timedelta(seconds=2))
    state = optimizer.state_dict()
    if rank == 0:
        late = "load_state_dict: rank 1 had not arrived after [2-9][.]. s "
        for text in (late, f"load_state_dict: earlier, {late}"):
            with pytest.raises(muster.CommError, match=f"^{text}"):
                optimizer.load_state_dict(state)
        with pytest.raises(muster.CommError):
            optimizer.step()
    else:
        time.sleep(6)


def _at_other_calls(rank: int, ranks: int) -> None:
    optimizer = _planned(grad_sync=True)
    state, another = optimizer.state_dict(), ("v", _sharded())
    with pytest.raises(muster.CommError, match="rank 0 is at load_state_dict and rank 1 at add_param_group"):
        if rank == 0:
            optimizer.load_state_dict(state)
        else:
            optimizer.add_param_group({"params": [another]})


@pytest.mark.parametrize(
    "missing", [_state_dict_on_one_rank_only, _one_rank_alone, _one_rank_late, _load_on_one_rank_only]
)
def test_a_rank_that_is_not_there_is_an_error_in_time(missing: Callable[[int, int], None]) -> None:
    run_ranks(2, missing, timeout=40)


def test_ranks_at_other_calls_are_told_so() -> None:
    run_ranks(2, _at_other_calls)
