"""The cap on scratch: its default, and what a cap that is too small says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import muster.torch


def _plan(**options: Any) -> Any:
    return muster.torch.Muon([("w", nn.Parameter(torch.ones(768, 768)))], **options).plan(verbose=False)


def test_the_default_is_a_gibibyte_where_that_is_enough() -> None:
    assert _plan()["scratch_cap_bytes"] == 1 << 30
    assert not _plan()["scratch_cap_raised"]
    assert _plan(scratch_mib=None) == _plan()
    assert _plan(scratch_mib=0)["scratch_cap_bytes"] == 0
    assert _plan(scratch_mib=64)["scratch_cap_bytes"] == 64 << 20


def test_a_cap_that_is_too_small_names_the_option_and_the_least_that_works() -> None:
    with pytest.raises(ValueError, match=r"scratch_mib: scratch cap of 1 MiB is too small") as refused:
        _plan(scratch_mib=1)
    found = re.search(r"the least that works is (\d+) MiB", str(refused.value))
    assert found is not None
    least = int(found[1])
    assert _plan(scratch_mib=least)["scratch_bytes_max"] <= least << 20
    with pytest.raises(ValueError, match=f"the least that works is {least} MiB"):
        _plan(scratch_mib=least - 1)
    with pytest.raises(ValueError, match="scratch_mib -1: expected a whole number from 0"):
        _plan(scratch_mib=-1)
