"""Averaged copies: which are taken, which are refused and in what words, and that they follow every cut."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import rankfold as rf
from rankfold.bayesian_tensor import tensors_of
from rankfold.pruning.copies import copies_of, same_in_copies

CONFIG = rf.CP(4)


def make(config: rf.TensorConfig = CONFIG, width: int = 5) -> nn.Sequential:
    return nn.Sequential(rf.Linear(12, width, config=config), nn.ReLU(), rf.Linear(width, 2, config=rf.CP(2)))


def determination(model: nn.Module, copies: object) -> rf.RankDetermination:
    optimizer = torch.optim.Adam(rf.param_groups(model))
    return rf.RankDetermination(model, optimizer, num_data=10, total_steps=10, copies=copies)


def test_one_copy_or_several() -> None:
    model = make()
    average = AveragedModel(model)
    assert copies_of(model, average) == copies_of(model, [average]) == (average,)
    assert copies_of(model, copy.deepcopy(model))[0][0].tensor is not model[0].tensor  # one model, not its layers
    assert copies_of(model, ()) == ()


@pytest.mark.parametrize(
    ("make_copies", "got"),
    [
        (lambda _: None, "got None"),
        (lambda _: "ema", "got 'ema'"),
        (lambda _: ["a"], "got 'a' among them"),
        (lambda _: [None], "got None among them"),
        (lambda model: model.state_dict(), r"a dictionary, as of a state_dict\(\)"),
        (lambda model: [model.state_dict()], r"a state_dict\(\) among them"),
        (lambda _: 3, "got 3"),
    ],
)
def test_what_is_no_copy_is_named(make_copies, got) -> None:
    model = make()
    message = rf"copies must be an averaged copy of the model or a list.*{got}.*; make the copy with copy\.deepcopy"
    with pytest.raises(TypeError, match=rf"(?s){message}"):
        determination(model, make_copies(model))
    with pytest.raises(TypeError, match=rf"(?s){message}"):
        rf.prune_(model, copies=make_copies(model))


@pytest.mark.parametrize(
    "make_copies",
    [
        lambda model: model,
        lambda model: [nn.DataParallel(model)],
        lambda model: copy.copy(model),
        lambda model: [AveragedModel(model), model],
    ],
    ids=["itself", "wrapped", "shallow", "among others"],
)
def test_the_model_itself_is_no_copy(make_copies) -> None:
    model = make()
    with pytest.raises(ValueError, match=r"must have factors of its own, and .*0\.tensor is of the model itself"):
        determination(model, make_copies(model))


def test_a_copy_is_named_once() -> None:
    model = make()
    average = AveragedModel(model)
    with pytest.raises(ValueError, match=r"copies\[1\] must .*module\.0\.tensor is that of copies\[0\] too"):
        determination(model, [average, average])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: make(rf.TT(4)), r"at 0\.tensor: it has TT .*, the model CP "),
        (lambda: make(width=6), r"at 0\.tensor: it has .* x \[6\].*, the model .* x \[5\]"),
        (lambda: make()[:1], r"at 2\.tensor: it has no such tensor"),
        (lambda: nn.Linear(12, 5), r"at 0\.tensor: it has no such tensor"),
    ],
    ids=["format", "size", "missing", "dense"],
)
def test_another_architecture_is_refused_at_once_and_by_name(other, message) -> None:
    with pytest.raises(ValueError, match=f"averaged copy does not match the model {message}"):
        determination(make(), other())


def step(ranks: rf.RankDetermination) -> None:
    (ranks.model(torch.ones(3, 12)).square().mean() + ranks.kl()).backward()
    ranks.optimizers[0].step()
    ranks.step()


def test_other_ranks_may_still_be_loaded_before_the_first_step(tmp_path) -> None:
    rf.save(make(), tmp_path)
    model, average = make(), make(rf.CP(3))
    ranks = determination(model, average)
    with pytest.raises(ValueError, match=r"at 0\.tensor: .*ranks \[3\], the model .*ranks \[4\]"):
        same_in_copies({"0.tensor": model[0].tensor}, ranks.copies)
    rf.load(average, tmp_path)
    step(ranks)


def test_other_ranks_are_refused_at_the_first_step_and_not_at_the_first_cut() -> None:
    ranks = determination(make(), make(rf.CP(3)))
    with pytest.raises(
        ValueError, match=r"does not match the model at 0\.tensor: .*ranks \[3\], the model .*ranks \[4\]"
    ):
        step(ranks)


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_model_and_copy_may_be_wrapped_differently(wrap) -> None:
    model = make()
    average = copy.deepcopy(model)
    with torch.no_grad():
        model[0].tensor.factors.mean[0][:, 1] = 0.0
    assert rf.prune_(wrap(model), rule=rf.RelativeNormRule(), copies=average) is not None
    assert average[0].tensor.format == model[0].tensor.format
    assert model[0].tensor.format.ranks == (3,)


@pytest.mark.filterwarnings("ignore::rankfold.RankCollapseWarning")
def test_a_copy_knows_of_a_collapse_as_soon_as_it_is_cut() -> None:
    model = make()
    average = copy.deepcopy(model)
    rf.prune_(model, rule=rf.VarianceRule(1e6), copies=average)
    assert model[0].tensor.collapsed
    assert average[0].tensor.collapsed


def test_a_copy_knows_how_often_variances_were_updated_and_what_has_collapsed(tmp_path) -> None:
    """Its report, and that of what is saved from it, would say otherwise that training went wrong."""
    model = make()
    average = AveragedModel(model)
    ranks = determination(model, average)
    for _ in range(3):
        step(ranks)
        average.update_parameters(model)
    model[0].tensor.collapsed = True
    step(ranks)
    for own, other in zip(tensors_of(model).values(), tensors_of(average).values(), strict=True):
        assert other.num_updates == own.num_updates >= 4
        assert other.collapsed == own.collapsed
    assert average.module[0].tensor.collapsed
    rf.save(average.module, tmp_path)
    for other in (average, rf.load(make(), tmp_path)):
        assert "never updated" not in str(rf.report(other))


def test_a_copy_may_be_on_another_device() -> None:
    """Averages are often kept on the CPU beside a model on a GPU; where there is none, both are on the CPU."""
    model = make().to("cuda" if torch.cuda.is_available() else "cpu")
    average = copy.deepcopy(model).cpu()
    with torch.no_grad():
        for each in (model, average):
            each[0].tensor.factors.mean[0][:, 1] = 0.0
    assert rf.prune_(model, rule=rf.RelativeNormRule(1e-6), copies=average) is not None
    assert average[0].tensor.format.ranks == model[0].tensor.format.ranks == (3,)
    assert average[0].tensor.variance.equal(model[0].tensor.variance.cpu())
