"""The code of tutorials and how-to pages runs, and does what the pages say."""

from __future__ import annotations

import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dion_reference import Reference
from ranks import _context
from test_parity import _newton_schulz
from torch import nn

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "docs"


def _run(script: str, arguments: list[str], out: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = [script, *arguments]
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")


def _ranks(tmp_path: Path, ranks: int, script: str, *arguments: str, status: int = 0) -> list[str]:
    """Runs a script as torchrun does, in processes that have torch already. Returns what each rank printed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank in range(ranks):
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": port}
        environment["MASTER_ADDR"] = "localhost"
        out = tmp_path / f"{rank}.txt"
        process = _context.Process(target=_run, args=(script, list(arguments), out, environment))
        process.start()
        processes.append(process)
    for process in processes:
        process.join(300)
    late = [process for process in processes if process.is_alive()]
    for process in late:
        process.kill()
    printed = [(tmp_path / f"{rank}.txt").read_text() for rank in range(ranks)]
    assert not late, printed
    assert [process.exitcode for process in processes] == [status] * ranks, printed
    return printed


def _losses(printed: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in re.findall(r"^step +(\d+)  loss (\S+)$", printed, re.MULTILINE)}


def test_the_tutorial_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    """By its own commands, with torchrun."""
    for name in ("examples", "data"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "examples/docs/fsdp2.sh"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"^step +(\d+)  loss (\S+)$", done.stdout, re.MULTILINE)
    trained, resumed = steps[:40], steps[40:]
    assert [int(step) for step, _ in trained] == list(range(1, 41))
    assert resumed == trained[20:]  # the same losses, to the last bit
    assert float(trained[-1][1]) < float(trained[0][1]) - 2
    # As the page says, with three ranks gradients are added in another order.
    arguments = [str(ROOT / "data" / "shakespeare.txt"), "--resume", "--checkpoint", str(tmp_path / "checkpoint")]
    three = _losses(_ranks(tmp_path, 3, "fsdp2.py", *arguments)[0])
    assert three == pytest.approx({int(step): float(loss) for step, loss in resumed}, rel=1e-3)


def test_the_quickstart_learns(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    runpy.run_path(str(EXAMPLES / "quickstart.py"))
    before, after = re.findall(r"\d+\.\d+", capsys.readouterr().out.splitlines()[-1])
    assert float(after) < float(before)


def test_checkpoints_continue_with_the_same_bits(tmp_path: Path) -> None:
    printed = _ranks(tmp_path, 2, "checkpoints.py", str(tmp_path))[0]
    assert re.findall("^(.*): same bits$", printed, re.MULTILINE) == [
        "torch.save",
        "torch.distributed.checkpoint",
        "save",
        "save, then replicas",
    ]


def test_experts_in_different_numbers_are_updated_alone(tmp_path: Path) -> None:
    printed = _ranks(tmp_path, 4, "expert_parallel.py")
    assert "3 experts" in printed[0] and "2 experts" in printed[2]
    changes = re.findall(r"changed by (\S+) to (\S+)", "".join(printed))
    # A step of lr 0.02 and scale sqrt(64 / 32) along 32 columns that are orthonormal to about a fifth.
    assert [float(c) for pair in changes for c in pair] == pytest.approx([0.02 * 64**0.5] * 4, rel=0.2)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    printed = _ranks(tmp_path, 2, "missing_rank.py", "2", status=1)[0]
    error, advice = printed.splitlines()
    text = "step 3 broke off: all_reduce 'agreement on a step': rank 1 had not arrived after "
    page = " ".join((ROOT / "docs" / "howto" / "debug-a-hang.md").read_text().split())
    assert error.startswith(f"rank 0: {text}2.") and text in page, error
    assert advice == "rank 0: another rank is late or gone, and this one is well"


def test_slow_steps_are_measured(tmp_path: Path) -> None:
    printed = _ranks(tmp_path, 1, "slow_step.py", str(tmp_path))[0]
    assert "'orthogonalize': " in printed
    assert float(re.findall(r"scratch: (\S+) MiB", printed)[0]) > 0
    assert '"NorMuon step 3"' in (tmp_path / "muster.json").read_text()


def test_plans_of_the_four_changes(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "four_changes.py"))
    page = (ROOT / "docs" / "lab" / "four-changes-points-2026-11.md").read_text()
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    for line in printed:
        assert f"\n{line}\n" in page


def test_overlapped_steps_have_the_same_bits(tmp_path: Path) -> None:
    printed = _ranks(tmp_path, 2, "overlap.py")[0]
    assert re.findall("^(.*): the same bits as without overlap$", printed, re.MULTILINE) == ["FSDP2", "DDP"]


# docs/howto/migrate.md: as many steps, with the same gradients, as the optimizer that is replaced.
STEPS = 10
MATRICES, OTHERS = [(24, 24), (64, 16), (16, 48)], [(7,), (5, 6)]
migrate = runpy.run_path(str(EXAMPLES / "migrate.py"))


def _draw(shapes: list[Any], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _train(parameters: list[nn.Parameter], optimizers: list[Any], steps: range = range(STEPS)) -> list[torch.Tensor]:
    """Returns the change of each parameter."""
    before = [p.detach().clone() for p in parameters]
    for step in steps:
        for parameter, gradient in zip(parameters, _draw([p.shape for p in parameters], step + 1)):
            parameter.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach() - b for p, b in zip(parameters, before)]


def _parameters() -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    weights = [nn.Parameter(w) for w in _draw(MATRICES + OTHERS, 0)]
    return weights[: len(MATRICES)], weights[len(MATRICES) :]


def _copies(parameters: list[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    copies = [nn.Parameter(p.detach().clone()) for p in parameters]
    return copies[: len(MATRICES)], copies[len(MATRICES) :]


def _agree(ours: list[torch.Tensor], theirs: list[torch.Tensor], matrices: int) -> None:
    """The first tensors are matrices, whose updates Muster rounds to bf16 (2^-9) before and after orthogonalization.

    The others are AdamW's. Their changes of 3e-3 are differences of weights of 1 that were rounded to 2^-24.
    """
    for number, (a, b) in enumerate(zip(ours, theirs)):
        difference = ((a - b).norm() / b.norm()).item()
        assert difference < (1e-2 if number < matrices else 2e-4), (number, difference)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(9, 16), nn.LayerNorm(16)
        self.up, self.lm_head = nn.Linear(16, 48, bias=False), nn.Linear(48, 9, bias=False)


def _adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)


def test_migrating_from_adamw_keeps_adamws_groups() -> None:
    """The page gave them another second beta and no decay."""
    model, twin = _Model(), _Model()
    changes = [_train([*m.parameters()], [make(m)]) for m, make in ((model, migrate["from_adamw"]), (twin, _adamw))]
    for change in changes:
        del change[[name for name, _ in model.named_parameters()].index("up.weight")]
    _agree(*changes, 0)


def test_migrating_from_adamw_keeps_the_decay_per_step() -> None:
    """The page gave NorMuon AdamW's weight decay at 67 times AdamW's rate."""
    model, twin = _Model(), _Model()
    for m, make in ((model, migrate["from_adamw"]), (twin, _adamw)):
        optimizer = make(m)
        for parameter in m.parameters():
            parameter.grad = torch.zeros_like(parameter)  # only decay changes weights
        optimizer.step()
    for a, b in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(a, b, rtol=2e-7, atol=0)  # two roundings; the decay is 3e-5


def test_adamw_for_all_parameters_is_torchs() -> None:
    model, twin = _Model(), _Model()
    ours = _train([*model.parameters()], [migrate["adamw_only"](model)])
    _agree(ours, _train([*twin.parameters()], [_adamw(twin)]), 0)


def test_migrating_from_torch_muon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim._muon, "_zeropower_via_newtonschulz", _newton_schulz)
    matrices, others = _parameters()
    theirs = [torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1), torch.optim.AdamW(others, lr=3e-4)]
    first = _train(matrices + others, theirs)
    mine = _parameters()
    _agree(_train([*mine[0], *mine[1]], [migrate["from_torch_muon"](*mine)]), first, len(MATRICES))

    mine = _copies(matrices + others)  # continues from their weights and state
    ours = migrate["from_torch_muon"](*mine)
    migrate["import_torch"](ours, *theirs)
    more = range(STEPS, 2 * STEPS)
    _agree(_train([*mine[0], *mine[1]], [ours], more), _train(matrices + others, theirs, more), len(MATRICES))


class _MuonWithAuxAdam:
    """Keller Jordan's, by its source: averages with Nesterov, five equal iterations."""

    def __init__(self, matrices: list[nn.Parameter], others: list[nn.Parameter]) -> None:
        self.matrices = [(p, torch.zeros_like(p)) for p in matrices]
        self.others = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in others]
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for p, momentum in self.matrices:
            momentum.lerp_(p.grad, 1 - 0.95)
            update = _newton_schulz(p.grad.lerp(momentum, 0.95), (3.4445, -4.7750, 2.0315), 5, 1e-7)
            p.add_(update * max(1, p.shape[0] / p.shape[1]) ** 0.5, alpha=-0.02)
        for p, first, second in self.others:
            first.lerp_(p.grad, 1 - 0.9)
            second.lerp_(p.grad.square(), 1 - 0.95)
            update = first / (1 - 0.9**self.steps) / ((second / (1 - 0.95**self.steps)).sqrt() + 1e-10)
            p.add_(update, alpha=-3e-4)


def test_migrating_from_muon_with_aux_adam() -> None:
    matrices, others = _parameters()
    expected = _train(matrices + others, [_MuonWithAuxAdam(matrices, others)])
    mine = _parameters()
    _agree(_train([*mine[0], *mine[1]], [migrate["from_muon_with_aux_adam"](*mine)]), expected, len(MATRICES))


def _dion_steps(reference: Reference, steps: range) -> list[torch.Tensor]:
    before = [w.clone() for w in reference.weights]
    for step in steps:
        reference.step(_draw(MATRICES, step + 1))
    return [(w - b).float() for w, b in zip(reference.weights, before)]


def test_migrating_from_dion() -> None:
    more = range(STEPS, 2 * STEPS)
    matrices = _parameters()[0]
    theirs = Reference([{"params": [p.detach().clone() for p in matrices], "cautious_wd": True}])
    first = _dion_steps(theirs, range(STEPS))
    _agree(_train(matrices, [migrate["from_dion"]([{"params": matrices}])]), first, len(MATRICES))

    mine = [nn.Parameter(w.float()) for w in theirs.weights]
    ours = migrate["from_dion"]([{"params": mine}])
    migrate["import_dion"](ours, {"optimizer": theirs.state_dict()})
    _agree(_train(mine, [ours], more), _dion_steps(theirs, more), len(MATRICES))
