"""param_groups: what goes to the matrix optimizer, how it is read, and what goes to AdamW. Models of torch only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from chosen_groups import Mlp, matrices
from torch import nn

import muster.torch
from muster.torch.default_groups import decisions

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "param-groups.md"


def test_convolutions_are_matrices_of_outputs_against_everything_else() -> None:
    model = nn.ModuleDict(
        {
            "plain": nn.Conv2d(3, 8, 3),
            "grouped": nn.Conv2d(8, 12, 3, groups=2),
            "depthwise": nn.Conv1d(8, 8, 4, groups=8),
            "transposed": nn.ConvTranspose2d(4, 6, 3),
            "mono": nn.Conv1d(1, 6, 10),
        }
    )
    assert matrices(model) == {
        "plain.weight": {"flatten": True},
        "grouped.weight": {"flatten": True, "heads": 2},
        "transposed.weight": {"flatten": True, "output_dim": 1},
        "mono.weight": {"flatten": True},
    }


def test_a_grouped_convolution_steps_as_its_groups_would_alone() -> None:
    torch.manual_seed(0)
    whole, parts = nn.Conv2d(4, 6, 3, groups=2, bias=False), [nn.Conv2d(2, 3, 3, bias=False) for _ in range(2)]
    whole.weight.grad = torch.randn_like(whole.weight)
    for part, weight, grad in zip(parts, whole.weight.detach().chunk(2), whole.weight.grad.chunk(2)):
        part.weight.data, part.weight.grad = weight.clone(), grad.clone()
    for model in (whole, nn.ModuleList(parts)):
        muster.torch.Muon(muster.torch.param_groups(model, verbose=False)).step()
    assert torch.equal(whole.weight, torch.cat([part.weight for part in parts]))


def test_attention_of_torch_is_cut_into_q_k_and_v() -> None:
    model = nn.ModuleDict({"one": nn.MultiheadAttention(8, 2), "three": nn.MultiheadAttention(8, 2, kdim=5, vdim=6)})
    assert matrices(model) == {
        "one.in_proj_weight": {"split_rows": [8, 8, 8]},
        "one.out_proj.weight": {},
        "three.q_proj_weight": {},
        "three.k_proj_weight": {},
        "three.v_proj_weight": {},
        "three.out_proj.weight": {},
    }


def test_recurrent_layers_are_cut_by_gate() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(5, 6, proj_size=4), "gru": nn.GRU(5, 6), "cell": nn.RNNCell(5, 6)})
    assert matrices(model) == {
        "lstm.weight_ih_l0": {"split_rows": [6, 6, 6, 6]},
        "lstm.weight_hh_l0": {"split_rows": [6, 6, 6, 6]},
        "lstm.weight_hr_l0": {},
        "gru.weight_ih_l0": {"split_rows": [6, 6, 6]},
        "gru.weight_hh_l0": {"split_rows": [6, 6, 6]},
        "cell.weight_ih": {},
        "cell.weight_hh": {},
    }


def test_embeddings_norms_and_vectors_are_for_adamw() -> None:
    model = nn.ModuleDict(
        {
            "table": nn.Embedding(9, 4),
            "bag": nn.EmbeddingBag(9, 4),
            "norm": nn.LayerNorm([3, 4]),
            "gate": nn.Linear(8, 1),
            "weight_norm": nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)),
        }
    )
    assert not matrices(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("wrap", [nn.utils.weight_norm, nn.utils.spectral_norm])
def test_weights_that_hooks_compute_are_for_adamw_as_parametrized_ones(wrap: Any) -> None:
    # weight_v went to the matrix optimizer, and parametrized weights to AdamW.
    model = nn.ModuleDict({"linear": wrap(nn.Linear(4, 5)), "convolution": wrap(nn.Conv1d(4, 5, 3))})
    assert not matrices(model)
    rules = {names[0]: decision.rule for names, _, decision in decisions(model) if decision.rule != "vector"}
    assert set(rules.values()) == {"parametrized weight"} and len(rules) == 2


class _Lora(nn.Linear):
    """Parameters beside the weight of a linear layer."""

    def __init__(self) -> None:
        super().__init__(8, 6)
        self.lora_A, self.lora_B = nn.Parameter(torch.zeros(8, 2)), nn.Parameter(torch.zeros(2, 6))
        self.table, self.stack = nn.Parameter(torch.zeros(6, 8)), nn.Parameter(torch.zeros(3, 6, 8))


class _Low(nn.Linear):
    """A weight of another shape than the features say."""

    def __init__(self) -> None:
        super().__init__(8, 6)
        self.weight = nn.Parameter(torch.zeros(8, 6))


def test_the_rule_of_linear_is_for_its_weight_only() -> None:
    # Every parameter of a subclass with two dimensions was a matrix, (out, in), by rule.
    model = nn.ModuleDict({"lora": _Lora(), "low": _Low()})
    assert matrices(model) == {"lora.weight": {}}
    guesses = {names[0]: decision.rule for names, _, decision in decisions(model) if decision.guess}
    assert guesses == {
        **{f"lora.{leaf}": f"no rule for {leaf} of _Lora" for leaf in ("lora_A", "lora_B", "table", "stack")},
        "low.weight": "no rule for weight of _Low, whose shape is not (out_features, in_features)",
    }
    assert matrices(model, include="lora.lora_?") == {"lora.weight": {}, "lora.lora_A": {}, "lora.lora_B": {}}


class _Bare(nn.Module):
    """Parameters whose class says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(7, 8))
        self.A_log = nn.Parameter(torch.zeros(8, 4))
        self.stack = nn.Parameter(torch.zeros(3, 8, 4))


def test_what_no_rule_knows_goes_to_adamw_and_is_called_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    # 2-D positions and A_log went to Muon.
    model = nn.ModuleDict({"bare": _Bare(), "linear": nn.Linear(8, 4)})
    assert matrices(model) == {"linear.weight": {}}
    capsys.readouterr()
    muster.torch.param_groups(model)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "muster: 1 parameter of 32 elements to the matrix optimizer; rule: Linear; linear.weight"
    assert (
        lines[1] == "muster: 3 parameters of 184 elements to adamw; guess: no rule for _Bare; "
        "bare.positions, bare.A_log, bare.stack"
    )
    assert lines[2] == "muster: 1 parameter of 4 elements to adamw; rule: vector; linear.bias"
    assert lines[3] == "muster: include= and exclude= of param_groups override a guess"


class _Stored(nn.Module):
    """A linear layer that is no nn.Linear."""

    def __init__(self, in_features: int, out_features: int, transposed: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))
        if transposed:
            self.weight = nn.Parameter(torch.zeros(in_features, out_features))


def test_features_tell_how_a_weight_is_stored() -> None:
    model = nn.ModuleDict({"out_in": _Stored(4, 6, False), "in_out": _Stored(4, 6, True)})
    assert matrices(model) == {"out_in.weight": {}, "in_out.weight": {"output_dim": 1}}


# Roles.


def test_a_tied_head_is_an_embedding() -> None:
    model = nn.ModuleDict({"a_head_that_comes_first": nn.Linear(8, 11, bias=False), "words": nn.Embedding(11, 8)})
    model["words"].weight = model["a_head_that_comes_first"].weight
    (group,) = muster.torch.param_groups(model, verbose=False)
    assert group["algorithm"] == "adamw" and len(group["params"]) == 1


# Frozen parameters.


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32])
def test_frozen_parameters_are_left_out(dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    # They were in the groups: state for all of them, and a base model in uint8 or fp16 was refused.
    torch.manual_seed(0)
    model = Mlp()
    for layer in (model.words, model.up):
        for parameter in layer.parameters():
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(dtype)
    optimizer = muster.torch.NorMuon(muster.torch.param_groups(model))
    assert "muster: 3 parameters of 232 elements left out: frozen; words.weight, up.weight" in capsys.readouterr().out
    trained = [model.down.weight, model.down.bias, model.score.weight, model.score.bias]
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in trained]
    before = [p.detach().clone() for p in trained]
    for parameter in trained:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    assert not any(torch.equal(parameter, was) for parameter, was in zip(trained, before))
    assert set(optimizer.state) == set(trained)


def test_an_unfrozen_parameter_is_added_with_its_name() -> None:
    # docs/reference/param-groups.md has this line.
    m = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 5))
    m[0].requires_grad_(False)
    opt = muster.torch.NorMuon(muster.torch.param_groups(m, verbose=False))
    m(torch.randn(2, 4)).sum().backward()
    opt.step()
    m[0].weight.requires_grad_(True)
    assert 'opt.add_param_group({"params": [("0.weight", m[0].weight)]})' in DOCUMENT.read_text()
    opt.add_param_group({"params": [("0.weight", m[0].weight)]})
    before = m[0].weight.detach().clone()
    m(torch.randn(2, 4)).sum().backward()
    opt.step()
    assert not torch.equal(m[0].weight, before) and opt.names[-1] == "0.weight"


def test_a_model_with_nothing_to_train_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to train: of 7 parameters none has requires_grad=True"):
        muster.torch.param_groups(Mlp().requires_grad_(False))


# What the user says.


def test_patterns_override() -> None:
    everything = {"up.weight": {}, "down.weight": {}}
    assert matrices(Mlp()) == everything
    assert matrices(Mlp(), include="score.weight") == {**everything, "score.weight": {}}
    assert matrices(Mlp(), include=["*e.weight", "words.*"], exclude="down.*") == {
        "up.weight": {},
        "score.weight": {},
        "words.weight": {"output_dim": 1},  # a row per word is a row per input
    }
    stacks = nn.ModuleDict({"bare": _Bare()})
    assert matrices(stacks, include={"*.stack": {"output_dim": 1}}) == {"bare.stack": {"output_dim": 1}}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"include": "*.wieght"}, r"include pattern '\*.wieght' matches no trainable parameter"),
        ({"exclude": ["up.*", "frozen.*"]}, r"exclude pattern 'frozen.\*' matches no trainable parameter"),
        ({"exclude": "froz*"}, r"'froz\*' matches no trainable parameter; it matches 2 frozen ones$"),
        ({"exclude": "frozen.bias"}, r"'frozen.bias' matches no trainable parameter; it matches 1 frozen one$"),
        ({"exclude": "ow"}, r"matches no trainable parameter; patterns match whole names: '\*ow\*' matches 2$"),
        ({"exclude": "ozen.*"}, r"parameter; patterns match whole names: '\*ozen.\*' matches 2 frozen ones$"),
        ({"exclude": "nothing"}, r"exclude pattern 'nothing' matches no trainable parameter$"),
        ({"include": "up.*", "exclude": "*.weight"}, "'up.weight': include 'up.\\*' and exclude '\\*.weight' both"),
        ({"include": "up.bias"}, r"'up.bias': include 'up.bias' matches it, but its shape \(16,\) has no matrix"),
        ({"include": "four"}, r"'four': .* no rule reads its shape \(2, 2, 2, 2\) as matrices"),
    ],
)
def test_patterns_that_cannot_be_followed_are_errors(arguments: dict[str, Any], error: str) -> None:
    model = Mlp()
    model.frozen = nn.Linear(2, 2).requires_grad_(False)
    model.four = nn.Parameter(torch.zeros(2, 2, 2, 2))
    with pytest.raises(ValueError, match=error):
        muster.torch.param_groups(model, verbose=False, **arguments)


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"ouput_dim": 1}, r"unknown key 'ouput_dim'; did you mean 'output_dim'\?$"),
        ({"num_heads": 2}, "'num_heads' is a key of another optimizer; give heads=$"),
        ({"overlap": True}, "'overlap' belongs to the optimizer as a whole: give it to the constructor$"),
        (
            {"algorithm": "adamw"},
            r"algorithm 'adamw' is not for matrices \(muon, normuon\); exclude= gives .* to AdamW$",
        ),
        ({"algorithm": "muno"}, r"algorithm 'muno' is not for matrices \(muon, normuon\)"),
    ],
)
def test_wrong_keys_of_a_pattern_are_errors_that_name_it(keys: dict[str, Any], error: str) -> None:
    # The optimizer found them later, and knew of no pattern; adamw put "matrices" into AdamW.
    with pytest.raises(ValueError, match=r"^param_groups: include 'up.weight': " + error):
        muster.torch.param_groups(Mlp(), include={"up.weight": keys})


def test_a_pattern_may_choose_a_matrix_algorithm() -> None:
    assert matrices(Mlp(), include={"up.weight": {"algorithm": "muon"}})["up.weight"] == {"algorithm": "muon"}


def test_wrong_arguments_are_type_errors_that_say_what_to_write() -> None:
    with pytest.raises(
        TypeError, match=r"^param_groups\(generator\): give it the model itself: param_groups\(model\)$"
    ):
        muster.torch.param_groups(Mlp().parameters())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^Muon\(model\): give it groups: Muon\(muster.torch.param_groups\(model\)"):
        muster.torch.Muon(Mlp())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            {"lr": 0.02},
            r"'lr' is an argument of NorMuon and Muon: NorMuon\(param_groups\(model\), lr=\.\.\.\); for AdamW",
        ),
        ({"betas": (0.9, 0.9)}, r"'betas' is an argument of NorMuon .*; for AdamW it is adamw_betas$"),
        ({"overlap": True}, r"'overlap' is an argument of NorMuon and Muon: .*overlap=\.\.\.\)$"),
        ({"exlude": "*"}, r"param_groups\(\) got an unexpected keyword argument 'exlude'$"),
    ],
)
def test_arguments_of_the_optimizer_are_type_errors(arguments: dict[str, Any], error: str) -> None:
    # lr= was an unexpected keyword argument, without a word of where it belongs.
    with pytest.raises(TypeError, match=error):
        muster.torch.param_groups(Mlp(), **arguments)


def test_a_lazy_parameter_is_an_error_that_names_it() -> None:
    # torch raised RuntimeError: Can't access the shape of an uninitialized parameter.
    model = nn.Sequential(nn.Linear(4, 6), nn.LazyLinear(5))
    with pytest.raises(ValueError, match=r"parameter '1.weight' is lazy and has no shape yet: run one forward first$"):
        muster.torch.param_groups(model)
    model(torch.zeros(2, 4))
    assert set(matrices(model)) == {"0.weight", "1.weight"}


def test_groups_have_names_of_their_own() -> None:
    groups = muster.torch.param_groups(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 5)), verbose=False)
    assert [group["name"] for group in groups] == ["matrices", "matrices flatten=True", "adamw"]


# Wrapped and sharded models.


def test_include_keeps_the_layout_of_the_class_unless_it_gives_one() -> None:
    model = nn.Sequential(nn.Conv1d(4, 8, 3, bias=False))
    (group,) = muster.torch.param_groups(model, include={"*": {"lr": 0.1}}, verbose=False)
    assert group["lr"] == 0.1 and group["flatten"] is True
    (group,) = muster.torch.param_groups(model, include={"*": {"view": (8, 12)}}, verbose=False)
    assert "flatten" not in group


def test_deciding_changes_no_buffer() -> None:
    # Reading `weight` of a spectral norm in training mode runs a power iteration.
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 6)))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    muster.torch.param_groups(model, verbose=False)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name
