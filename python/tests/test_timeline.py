"""muster.torch.profile: a trace that nests, and that has torch.profiler's clock."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import run_ranks
from test_overlap import _Model, _train
from test_overlap import _optimizer as _in_waves
from torch import nn

import muster.torch
from muster.torch import timeline as engine_timeline


def _optimizer(**options) -> tuple[nn.Parameter, muster.torch.NorMuon]:
    weight = nn.Parameter(torch.randn(200, 100, generator=torch.Generator().manual_seed(0)))
    gain = nn.Parameter(torch.ones(7))
    groups = [{"params": [("w", weight)]}, {"params": [("g", gain)], "algorithm": "adamw"}]
    optimizer = muster.torch.NorMuon(groups, waves=1, **options)
    weight.grad, gain.grad = torch.sin(weight.detach() * 9), torch.ones(7)
    return weight, optimizer


def _slices(path: Path) -> list[dict]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def _ours(events: list[dict]) -> list[dict]:
    return [event for event in events if event["cat"].startswith("muster")]


def _within(inner: dict, outer: dict, slack_us: float = 0.5) -> bool:
    """Up to what rounding to microseconds does."""
    return outer["ts"] - slack_us <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + slack_us


def _assert_nested(events: list[dict]) -> None:
    """Slices of a track are beside or around each other: what trace viewers need."""
    for track in {event["tid"] for event in events}:
        open_slices: list[dict] = []
        for event in sorted((e for e in events if e["tid"] == track), key=lambda e: (e["ts"], -e["dur"])):
            while open_slices and event["ts"] >= open_slices[-1]["ts"] + open_slices[-1]["dur"] - 0.5:
                open_slices.pop()
            assert not open_slices or _within(event, open_slices[-1]), (event, open_slices[-1])
            open_slices.append(event)


def test_a_profile_has_the_steps_made_in_it(tmp_path: Path) -> None:
    weight, optimizer = _optimizer()
    optimizer.step()
    with muster.torch.profile(tmp_path / "outer.json"):
        optimizer.step()
        with muster.torch.profile() as inner:
            optimizer.step()
    optimizer.step()
    inner.save(tmp_path / "inner.json")
    outer = _slices(tmp_path / "outer.json")
    steps = [event for event in outer if event["cat"] == "muster step"]
    assert [step["name"] for step in steps] == ["NorMuon step 2", "NorMuon step 3"]
    compute = [event for event in outer if event["cat"] == "muster compute"]
    assert any(event["name"].startswith("orthogonalize") for event in compute)
    assert all(sum(_within(event, step) for step in steps) == 1 for event in compute)
    _assert_nested(outer)
    names = [event["name"] for event in _slices(tmp_path / "inner.json") if event["cat"] == "muster step"]
    assert names == ["NorMuon step 3"]


def test_a_step_in_backward_is_recorded_from_its_first_wave_on(tmp_path: Path) -> None:
    """It used to go by what the step before had been told: the first had no waves, and the one after the last had."""
    model = _Model()
    optimizer = _in_waves(model, overlap=True)
    _train(model, optimizer, range(2))
    with muster.torch.profile(tmp_path / "waves.json"):
        assert _train(model, optimizer, range(2, 3)) == [2]
    _train(model, optimizer, range(3, 4))
    assert not optimizer._built.engine.trace()
    compute = [event for event in _slices(tmp_path / "waves.json") if event["name"].startswith("orthogonalize")]
    assert {event["args"]["wave"] for event in compute} == {0, 1, 2}


def test_what_a_device_computes_at_once_is_on_different_tracks(tmp_path: Path) -> None:
    begin = time.monotonic_ns()
    spans = [(0, 90), (10, 60), (50, 100), (90, 110)]
    with muster.torch.profile(tmp_path / "lanes.json"):
        engine_timeline.record(
            "step", begin, [("work", False, 0, begin + a * 1000, begin + b * 1000, 0) for a, b in spans]
        )
    events = _slices(tmp_path / "lanes.json")
    _assert_nested(events)
    assert len({event["tid"] for event in events}) == 3


def test_it_lines_up_with_torch_profiler(tmp_path: Path) -> None:
    weight, optimizer = _optimizer()
    optimizer.step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as theirs, muster.torch.profile() as timeline:
        for _ in range(3):
            optimizer.step()
            weight.detach().matmul(weight.detach().T)  # between steps
    theirs.export_chrome_trace(str(tmp_path / "both.json"))
    timeline.save(tmp_path / "muster.json")
    timeline.add_to(tmp_path / "both.json")

    both = _slices(tmp_path / "both.json")
    ours = [event for event in both if event["cat"] == "muster step"]
    calls = [event for event in both if event["name"].startswith("Optimizer.step#NorMuon")]
    products = [event for event in both if event["name"] == "aten::matmul"]
    assert len(ours) == len(calls) == len(products) == 3
    # torch has its clock from the processor's counter: the two differ by some microseconds.
    assert all(_within(step, call, 200) for step, call in zip(ours, calls))
    assert all(step["ts"] + step["dur"] < product["ts"] + 200 for step, product in zip(ours, products))
    assert all(product["ts"] < step["ts"] + 200 for product, step in zip(products, ours[1:]))
    assert {event["pid"] for event in ours} == {event["pid"] for event in calls}
    _assert_nested(_ours(both))
    # Opened alone it has the same times.
    alone = _slices(tmp_path / "muster.json")
    assert [event["ts"] for event in alone] == [event["ts"] for event in _ours(both)]


def _ranks_write_their_own(rank: int, ranks: int, folder: str) -> None:
    weight, optimizer = _optimizer(grad_sync=True)  # whose gradients are messages
    with muster.torch.profile(f"{folder}/trace.json") as timeline:
        optimizer.step()
    assert timeline.path == Path(folder) / f"trace.rank{rank}.json"
    dist.barrier()
    other = _slices(Path(folder) / f"trace.rank{(rank + 1) % ranks}.json")
    mine = _slices(timeline.path)
    assert any(event["cat"] == "muster exchange" and event["args"]["bytes"] > 0 for event in mine + other)
    _assert_nested(mine)
    # Both took part in one step: they overlap.
    (a,), (b,) = ([e for e in events if e["cat"] == "muster step"] for events in (mine, other))
    assert a["ts"] < b["ts"] + b["dur"] and b["ts"] < a["ts"] + a["dur"]


def test_every_rank_writes_its_own(tmp_path: Path) -> None:
    run_ranks(2, _ranks_write_their_own, str(tmp_path))
