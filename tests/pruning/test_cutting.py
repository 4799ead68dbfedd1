"""Cutting ranks physically: factors, λ, optimizer state, copies; and training goes on."""

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

import rankfold as rf
from rankfold.bayesian_tensor import tensors_of
from rankfold.config import TensorConfig
from rankfold.pruning.cutting import cut_dead_ranks

CONFIGS: list[TensorConfig] = [
    rf.CP(4, in_dims=(3, 4), out_dims=(5,)),
    rf.Tucker((3, 4, 3), in_dims=(3, 4), out_dims=(5,)),
    rf.TT((3, 4), in_dims=(3, 4), out_dims=(5,)),
    rf.TTM((4,), in_dims=(3, 4), out_dims=(1, 5)),
]
each_format = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)

OPTIMIZERS: dict[str, Callable[[list[dict]], Optimizer]] = {
    "sgd": lambda g: torch.optim.SGD(g, lr=1e-2),
    "sgd-momentum": lambda g: torch.optim.SGD(g, lr=1e-2, momentum=0.9, nesterov=True),
    "adam": lambda g: torch.optim.Adam(g, lr=1e-2),
    "adam-amsgrad": lambda g: torch.optim.Adam(g, lr=1e-2, amsgrad=True),
    "adamw": lambda g: torch.optim.AdamW(g, lr=1e-2),
    "adagrad": lambda g: torch.optim.Adagrad(g, lr=1e-2),
    "rmsprop": lambda g: torch.optim.RMSprop(g, lr=1e-2, centered=True, momentum=0.5),
}


def make_layer(config: TensorConfig) -> rf.Linear:
    return rf.Linear(12, 5, config=config, dtype=torch.float64)


def first_dead(layer: rf.Linear, k: int = 1) -> dict[str, list[Tensor]]:
    """Rank k of every group is dead."""
    return {"tensor": [torch.arange(g.size) == k for g in layer.tensor.format.rank_groups]}


@torch.no_grad()
def zero_out(layer: rf.Linear, k: int = 1) -> None:
    """Make rank k of every group exactly zero on all its axes, spread included."""
    for group in layer.tensor.format.rank_groups:
        for factor, axis in group.axes:
            layer.tensor.factors.mean[factor].select(axis, k).zero_()
            if layer.tensor.inference == "bayes":
                layer.tensor.factors.log_std[factor].select(axis, k).fill_(-100.0)


@each_format
@pytest.mark.parametrize("inference", ["bayes", "map"])
def test_cutting_zero_slices_keeps_the_function(config: TensorConfig, inference: str) -> None:
    layer = make_layer(replace(config, inference=inference))
    zero_out(layer)
    x = torch.randn(7, 12, dtype=torch.float64)
    before = layer.eval()(x)
    before_ranks = layer.tensor.format.ranks
    result = cut_dead_ranks(layer, first_dead(layer))
    torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-14)
    assert result is not None
    assert result.tensors[0].ranks_before == before_ranks
    assert layer.tensor.format.ranks == tuple(r - 1 for r in before_ranks) == result.tensors[0].ranks_after
    assert result.tensors[0].mean_change < 1e-7
    assert result.tensors[0].sample_change < 1e-7


@each_format
def test_everything_has_the_new_shape(config: TensorConfig) -> None:
    layer = make_layer(config)
    cut_dead_ranks(layer, first_dead(layer))
    tensor = layer.tensor
    assert [tuple(p.shape) for p in tensor.factors.mean] == list(tensor.format.factor_shapes)
    assert [tuple(p.shape) for p in tensor.factors.log_std] == list(tensor.format.factor_shapes)
    assert tensor.variance.shape == tensor.count.shape == (sum(tensor.format.ranks),)
    assert sum(p.numel() for p in tensor.parameters()) == 2 * tensor.format.num_entries


@each_format
def test_the_reported_change_is_that_of_the_weight(config: TensorConfig) -> None:
    layer = make_layer(config).eval()
    before = layer.weight
    result = cut_dead_ranks(layer, first_dead(layer))
    assert result is not None
    expected = ((layer.weight - before).norm() / before.norm()).detach()
    assert result.tensors[0].mean_change == pytest.approx(float(expected), rel=1e-6)


@each_format
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_if_the_dead_rank_had_never_been(config: TensorConfig, name: str) -> None:
    """With exactly dead ranks, the pruned model and an unpruned twin follow the same path.

    The path is that of the likelihood alone, with point factors: then a zero rank stays zero, and the
    optimizer's state of every other entry must have survived the cut for the two to agree.
    """
    layer = make_layer(replace(config, inference="map"))
    zero_out(layer)
    twin = copy.deepcopy(layer)
    x, y = torch.randn(20, 12, dtype=torch.float64), torch.randn(20, 5, dtype=torch.float64)
    optimizers = [OPTIMIZERS[name](rf.param_groups(m)) for m in (layer, twin)]
    for step in range(8):
        for model, optimizer in zip((layer, twin), optimizers, strict=True):
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if step == 3:
            assert cut_dead_ranks(layer, first_dead(layer), [optimizers[0]]) is not None
            for parameter in layer.parameters():
                for value in optimizers[0].state.get(parameter, {}).values():
                    assert not isinstance(value, Tensor) or value.numel() == 1 or value.shape == parameter.shape
    torch.testing.assert_close(layer.eval()(x), twin.eval()(x), rtol=1e-10, atol=1e-12)


def test_parameters_keep_their_identity_and_schedulers_and_hooks_go_on() -> None:
    layer = make_layer(CONFIGS[0])
    identities = [id(p) for p in layer.parameters()]
    optimizer = torch.optim.Adam(rf.param_groups(layer))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    seen = []
    layer.tensor.factors.mean[0].register_hook(lambda grad: seen.append(tuple(grad.shape)))
    loss = layer(torch.randn(4, 12, dtype=torch.float64)).sum()
    loss.backward()
    optimizer.step()
    cut_dead_ranks(layer, first_dead(layer), [optimizer])
    assert [id(p) for p in layer.parameters()] == identities
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == set(identities)
    assert layer.tensor.factors.mean[0].grad.shape == (3, 3)
    optimizer.zero_grad()
    layer(torch.randn(4, 12, dtype=torch.float64)).sum().backward()  # `loss` is still alive
    optimizer.step()
    scheduler.step()
    assert seen == [(3, 4), (3, 3)]


def test_an_old_loss_fails_with_a_clear_message() -> None:
    layer = make_layer(CONFIGS[0])
    old = layer(torch.randn(4, 12, dtype=torch.float64)).sum()
    cut_dead_ranks(layer, first_dead(layer))
    layer(torch.randn(4, 12, dtype=torch.float64)).sum().backward()
    with pytest.raises(RuntimeError, match="computed before ranks were pruned"):
        old.backward()


def test_a_pruned_model_can_be_copied_and_pickled_without_warnings() -> None:
    layer = make_layer(CONFIGS[0])
    cut_dead_ranks(layer, first_dead(layer))
    x = torch.randn(4, 12, dtype=torch.float64)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin.eval()(x), layer.eval()(x))


def test_several_optimizers() -> None:
    layer = make_layer(CONFIGS[0])
    means = torch.optim.SGD(list(layer.tensor.factors.mean), lr=0.1, momentum=0.9)
    rest = torch.optim.Adam([*layer.tensor.factors.log_std, *layer.bias_vector.parameters()])
    layer(torch.randn(4, 12, dtype=torch.float64)).sum().backward()
    means.step()
    rest.step()
    cut_dead_ranks(layer, first_dead(layer), [means, rest])
    assert means.state[layer.tensor.factors.mean[0]]["momentum_buffer"].shape == (3, 3)
    assert rest.state[layer.tensor.factors.log_std[0]]["exp_avg"].shape == (3, 3)


class RowSums(Optimizer):
    """An optimizer whose state is not shaped like its parameters."""

    def __init__(self, params: list[dict]) -> None:
        super().__init__(params, {})

    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["rows"] = p.grad.flatten(1).sum(1) if p.dim() > 1 else p.grad


def test_an_optimizer_with_unknown_state_is_refused_and_nothing_changes() -> None:
    layer = make_layer(CONFIGS[0])
    optimizer = RowSums(rf.param_groups(layer))
    layer(torch.randn(4, 12, dtype=torch.float64)).sum().backward()
    optimizer.step()
    with pytest.raises(TypeError, match=r"RowSums keeps a state 'rows' .* use another, such as Adam"):
        cut_dead_ranks(layer, first_dead(layer), [optimizer])
    assert layer.tensor.format.ranks == (4,)


def test_lbfgs_is_refused() -> None:
    layer = make_layer(CONFIGS[0])
    optimizer = torch.optim.LBFGS(layer.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = layer(torch.ones(4, 12, dtype=torch.float64)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(TypeError, match="LBFGS keeps a state"):
        cut_dead_ranks(layer, first_dead(layer), [optimizer])


def test_an_averaged_copy_is_cut_too() -> None:
    model = nn.Sequential(make_layer(CONFIGS[2]))
    average = AveragedModel(model)
    dead = {"0.tensor": [torch.arange(g.size) == 1 for g in model[0].tensor.format.rank_groups]}
    cut_dead_ranks(model, dead, copies=[average])
    assert average.module[0].tensor.format == model[0].tensor.format
    average.update_parameters(model)


def test_an_averaged_copy_with_other_shapes_is_refused() -> None:
    model = nn.Sequential(make_layer(CONFIGS[0]))
    average = AveragedModel(model)
    dead = {"0.tensor": [torch.tensor([False, True, True, True])]}
    cut_dead_ranks(model, dead)
    with pytest.raises(ValueError, match=r"averaged copy does not match the model at 0.tensor: .*ranks \[4\], the"):
        cut_dead_ranks(model, {"0.tensor": [torch.tensor([True])]}, copies=[average])


def sizes_of(groups: list[torch.Tensor]) -> list[int]:
    return [len(group) for group in groups]


@each_format
def test_a_collapsed_layer_keeps_one_rank_and_says_so(config: TensorConfig) -> None:
    layer = make_layer(config)
    groups = layer.tensor.format.rank_groups
    dead = {"tensor": [torch.ones(g.size, dtype=torch.bool) for g in groups]}
    with pytest.warns(rf.RankCollapseWarning, match=r"tensor collapsed: by InformationRule.* all of \[.*\] are"):
        result = cut_dead_ranks(layer, dead)
    assert layer.tensor.format.ranks == (1,) * len(groups)
    assert result is not None
    assert result.tensors[0].collapsed
    assert "collapsed" in str(result)


def test_prune_does_nothing_to_a_healthy_or_fixed_rank_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rf.prune_(make_layer(CONFIGS[0])) is None
        assert rf.prune_(make_layer(replace(CONFIGS[0], inference="fixed"))) is None


def test_a_collapse_is_told_once_and_with_the_remedy_of_its_rule() -> None:
    layer = make_layer(CONFIGS[0])
    with pytest.warns(rf.RankCollapseWarning, match=r"by VarianceRule\(epsilon=1000000.0\).* lower epsilon"):
        rf.prune_(layer, rule=rf.VarianceRule(1e6))
    assert rf.prune_(layer, rule=rf.VarianceRule(1e6)) is None


def test_layers_that_collapse_together_are_told_of_together() -> None:
    model = nn.Sequential(
        make_layer(CONFIGS[0]), make_layer(CONFIGS[2]), make_layer(replace(CONFIGS[0], inference="map"))
    )
    dead = {name: [torch.ones(r, dtype=torch.bool) for r in t.format.ranks] for name, t in tensors_of(model).items()}
    with pytest.warns(rf.RankCollapseWarning) as caught:
        cut_dead_ranks(model, dead)
    both, alone = (str(warning.message) for warning in caught)  # by two rules
    assert both.startswith("0.tensor, 1.tensor collapsed: by InformationRule")
    ranks = f"{sizes_of(dead['0.tensor'])}, {sizes_of(dead['1.tensor'])}"
    assert f"of their ranks {ranks} all of {ranks} are dead" in both
    assert alone.startswith("2.tensor collapsed: by RelativeNormRule")


def test_a_collapse_that_is_an_error_leaves_all_as_it_was() -> None:
    model = nn.Sequential(make_layer(CONFIGS[0]), make_layer(CONFIGS[0]))
    some, all_dead = torch.tensor([True, False, False, False]), torch.ones(4, dtype=torch.bool)
    with pytest.raises(rf.RankCollapseWarning):  # as everywhere in the tests
        cut_dead_ranks(model, {"0.tensor": [some], "1.tensor": [all_dead]})
    assert [t.format.ranks for t in tensors_of(model).values()] == [(4,), (4,)]


@pytest.mark.parametrize("way", ["prune_", "prune", "step"])
def test_the_warning_of_a_collapse_points_to_the_line_of_the_user(way: str) -> None:
    layer = make_layer(replace(CONFIGS[0], inference="map"))
    rule = rf.VarianceRule(1e6)
    optimizer = torch.optim.Adam(rf.param_groups(layer))
    pruning = rf.Pruning(at=(1.0,), checks=1, patience=1, rule=rule)
    ranks = rf.RankDetermination(layer, optimizer, num_data=10, total_steps=1, pruning=pruning)
    ranks.kl().backward()
    call = {"prune_": lambda: rf.prune_(layer, rule=rule), "prune": ranks.prune, "step": ranks.step}[way]
    with pytest.warns(rf.RankCollapseWarning) as caught:
        call()
    assert caught[0].filename == __file__


def test_a_collapse_of_the_last_rank_is_told() -> None:
    layer = make_layer(CONFIGS[0])
    layer.tensor.variance.copy_(torch.tensor([1.0, 1e-9, 1e-9, 1e-9]))
    assert rf.prune_(layer, rule=rf.VarianceRule(1e-5)) is not None
    assert layer.tensor.format.ranks == (1,)
    layer.tensor.variance.fill_(1e-9)
    with pytest.warns(rf.RankCollapseWarning, match=r"of its ranks \[1\] all of \[1\] are dead"):
        assert rf.prune_(layer, rule=rf.VarianceRule(1e-5)) is None
    assert rf.prune_(layer, rule=rf.VarianceRule(1e-5)) is None  # once


def test_prune_with_the_papers_rule() -> None:
    layer = make_layer(CONFIGS[0])
    layer.tensor.variance.copy_(torch.tensor([1.0, 1e-9, 1.0, 1e-7]))
    result = rf.prune_(layer, rule=rf.VarianceRule(1e-5))
    assert result is not None
    assert layer.tensor.format.ranks == (2,)
    assert layer.tensor.variance.tolist() == [1.0, 1.0]
    assert result.as_dict()["tensors"][0]["ranks_after"] == (2,)


def test_a_compiled_model_goes_on_after_pruning() -> None:
    layer = make_layer(CONFIGS[2])
    compiled = torch.compile(layer, backend="aot_eager")
    x = torch.randn(4, 12, dtype=torch.float64)
    compiled(x).sum().backward()
    cut_dead_ranks(layer, first_dead(layer))
    compiled(x).sum().backward()
    torch.testing.assert_close(compiled.eval()(x), layer.eval()(x))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)
def test_frozen_factors_are_cut_too(config: TensorConfig) -> None:
    """A model for answers alone, and the usual averaged copy: neither needs gradients."""
    layer = make_layer(config)
    zero_out(layer)
    average = copy.deepcopy(layer).requires_grad_(False)
    before = layer.eval().tensor.matrix().detach()
    assert cut_dead_ranks(layer, first_dead(layer), copies=[average]) is not None
    frozen = make_layer(config).requires_grad_(False)
    zero_out(frozen)
    assert cut_dead_ranks(frozen, first_dead(frozen)) is not None
    for each in (layer, average, frozen):
        shapes = tuple(tuple(mean.shape) for mean in each.tensor.factors.mean)
        assert shapes == each.tensor.format.factor_shapes
    torch.testing.assert_close(average.eval().tensor.matrix(), before)
