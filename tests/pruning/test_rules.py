"""Which ranks are dead: the rules against constructed posteriors and against real training."""

import math

import pytest
import torch
from torch import nn

import rankfold as rf
from rankfold.bayesian_tensor import BayesianTensor
from rankfold.config import TensorConfig
from rankfold.pruning.averaging import TwoWindows, WindowAverage, update_all
from rankfold.pruning.rules import InformationRule, PruningRule, RelativeNormRule, VarianceRule, slice_information

CONFIGS: list[TensorConfig] = [
    rf.CP(4, in_dims=(4, 5), out_dims=(3, 2)),
    rf.Tucker((3, 4, 2, 2), in_dims=(4, 5), out_dims=(3, 2)),
    rf.TT((3, 4, 2), in_dims=(4, 5), out_dims=(3, 2)),
    rf.TTM((4,), in_dims=(4, 5), out_dims=(3, 2)),
]
THREE_CORES = rf.TT((3, 2), in_dims=(4, 5), out_dims=(6,))
THREE_PAIRS = rf.TTM((3, 2), in_dims=(2, 5, 2), out_dims=(3, 2, 1))
each_format = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: type(c).__name__)


def make_tensor(config: TensorConfig, in_size: int = 20, out_size: int = 6) -> BayesianTensor:
    """A tensor whose entries all have the same magnitude, so that every slice is clearly alive."""
    tensor = BayesianTensor(config.build(in_size, out_size), config, 0.5, dtype=torch.float64)
    with torch.no_grad():
        for mean in tensor.factors.mean:
            mean.copy_(0.5 * mean.sign())
    tensor.update_variance(1.0)
    return tensor


@torch.no_grad()
def kill(tensor: BayesianTensor, group: int, k: int, axis_number: int = 0) -> None:
    """Make rank k of a group dead on one axis: posterior equal to the prior, mean zero."""
    factor, axis = tensor.format.rank_groups[group].axes[axis_number]
    tensor.factors.mean[factor].select(axis, k).zero_()
    prior = tensor.prior_variances(tensor.variances())[factor].expand_as(tensor.factors.mean[factor])
    tensor.factors.log_std[factor].select(axis, k).copy_(0.5 * prior.select(axis, k).log())


@each_format
def test_a_fresh_tensor_is_alive(config: TensorConfig) -> None:
    assert not any(group.any() for group in InformationRule().dead(make_tensor(config)))


@each_format
def test_a_dead_slice_on_any_axis_is_found_and_no_other(config: TensorConfig) -> None:
    for group, rank_group in enumerate(make_tensor(config).format.rank_groups):
        for axis_number in range(len(rank_group.axes)):
            tensor = make_tensor(config)
            for _ in range(30):  # let λ settle: λ = σ² D/(D+1) sinks a little at every update
                kill(tensor, group, 1, axis_number)
                tensor.update_variance(1.0)
            dead = InformationRule().dead(tensor)
            expected = [
                torch.arange(g.size) == (1 if n == group else -1) for n, g in enumerate(tensor.format.rank_groups)
            ]
            assert all(torch.equal(a, b) for a, b in zip(dead, expected, strict=True))


@each_format
def test_information_is_the_kl_divergence(config: TensorConfig) -> None:
    tensor = make_tensor(config)
    tensor.update_variance(1.0)
    nats = slice_information(tensor, TwoWindows.now(tensor))[2]
    for n, prior in enumerate(tensor.prior_variances(tensor.variances())):
        q = torch.distributions.Normal(tensor.factors.mean[n], tensor.factors.log_std[n].exp())
        p = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), prior.sqrt().expand_as(q.mean))
        torch.testing.assert_close(nats[n], torch.distributions.kl_divergence(q, p))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_live_slice_of_few_entries_survives(count: int) -> None:
    """With D entries a live slice may carry under 3 nats; its signal saves it."""
    config = rf.TT((2, 3), in_dims=(count, 4), out_dims=(3,))
    tensor = make_tensor(config, 4 * count, 3)
    assert not InformationRule().dead(tensor)[0].any()
    kill(tensor, 0, 0)
    assert InformationRule().dead(tensor)[0].tolist() == [True, False]


@each_format
@pytest.mark.parametrize(("ratio", "is_dead"), [(0.0, True), (0.25, True), (0.35, False), (1.0, False)])
def test_entries_that_know_only_that_they_are_small_are_dead(config: TensorConfig, ratio: float, is_dead: bool) -> None:
    """σ far below that of the prior is worth nats; without a signal they are worth nothing."""
    few_nats_do_not_count = InformationRule(nats=1e-9)
    for group in range(len(make_tensor(config).format.rank_groups)):
        tensor = make_tensor(config)
        fade(tensor, group, 1, ratio, 0.01)
        assert bool(few_nats_do_not_count.dead(tensor)[group][1]) == is_dead


@each_format
@pytest.mark.parametrize(("std", "is_dead"), [(0.005, True), (0.08, False)])
def test_a_faint_rank_is_dead_only_beside_much_stronger_ones(config: TensorConfig, std: float, is_dead: bool) -> None:
    """Others have means of 0.5: the power of one with σ = 0.005 is less than a thousandth, with 0.08 it is more."""
    few_nats_do_not_count = InformationRule(nats=1e-9)
    for group in range(len(make_tensor(config).format.rank_groups)):
        tensor = make_tensor(config)
        fade(tensor, group, 1, 0.25, std)
        assert bool(few_nats_do_not_count.dead(tensor)[group][1]) == is_dead


@each_format
def test_ranks_that_are_faint_together_are_alive(config: TensorConfig) -> None:
    tensor = make_tensor(config)
    for group, rank_group in enumerate(tensor.format.rank_groups):
        for k in range(rank_group.size):
            fade(tensor, group, k, 0.25, 0.01)
    assert not any(dead.any() for dead in InformationRule(nats=1e-9).dead(tensor))


@torch.no_grad()
def fade(tensor: BayesianTensor, group: int, k: int, ratio: float, std: float) -> None:
    """Give rank k of a group a small spread on its first axis, and a signal of ``ratio`` times the noise."""
    factor, axis = tensor.format.rank_groups[group].axes[0]
    tensor.factors.log_std[factor].select(axis, k).fill_(math.log(std))
    tensor.factors.mean[factor].select(axis, k).fill_(std * math.sqrt(ratio))


@pytest.mark.parametrize("config", [CONFIGS[0], CONFIGS[1], THREE_CORES, THREE_PAIRS], ids=lambda c: type(c).__name__)
def test_entries_count_as_much_as_they_are_worth_in_the_weight(config: TensorConfig) -> None:
    """Signal over noise of a slice is that of ``Σ ‖A_e‖²``, with A_e the weight that one entry of a factor makes."""
    for factor in range(len(make_tensor(config).factors.mean)):
        tensor = make_tensor(config)
        means = [torch.randn_like(mean) for mean in tensor.factors.mean]
        with torch.no_grad():
            for n, (mean, log_std) in enumerate(zip(tensor.factors.mean, tensor.factors.log_std, strict=True)):
                mean.copy_(means[n])
                # the others are certain, so that this factor is the weakest side of all its ranks
                log_std.copy_(torch.randn_like(log_std) if n == factor else torch.full_like(log_std, -20.0))
        norms = torch.zeros_like(means[factor])
        for e in range(norms.numel()):
            single = torch.zeros_like(norms).flatten()
            single[e] = 1.0
            parts = [single.view_as(norms) if n == factor else mean for n, mean in enumerate(means)]
            norms.view(-1)[e] = tensor.format.reconstruct(parts).square().sum()
        for group, weights in zip(tensor.format.rank_groups, InformationRule().weight_of(tensor), strict=True):
            for axis in (a for f, a in group.axes if f == factor):
                variances = (2.0 * tensor.factors.log_std[factor].detach()).exp()
                signal, noise = means[factor].square() * norms, variances * norms
                expected = [
                    float(signal.select(axis, k).sum() / noise.select(axis, k).sum()) for k in range(group.size)
                ]
                assert weights.tolist() == pytest.approx(expected)


def test_a_core_may_have_any_spread_beside_dead_ranks() -> None:
    """No λ governs the core of Tucker: where a rank is dead, its entries spread as far as their prior."""
    tensor = make_tensor(rf.Tucker(6, in_dims=(8, 8), out_dims=(8,)), 64, 8)
    with torch.no_grad():
        alive = (slice(2),) * 3
        for mean, log_std in zip(tensor.factors.mean, tensor.factors.log_std, strict=True):
            mean_alive, log_std_alive = mean[..., :2].clone(), log_std[..., :2].clone()
            mean.zero_()
            log_std.fill_(-7.0)
            mean[..., :2], log_std[..., :2] = mean_alive, log_std_alive
        mean, log_std = tensor.factors.mean[-1], tensor.factors.log_std[-1]
        mean.zero_()
        log_std.zero_()
        mean[alive], log_std[alive] = 0.5, -3.0
    tensor.update_variance(1.0)
    for dead in InformationRule().dead(tensor):
        assert dead.tolist() == [False, False, True, True, True, True]


def test_of_dead_ranks_the_one_with_the_most_signal_is_kept_and_not_the_one_with_the_most_nats() -> None:
    layer = rf.Linear(20, 6, config=rf.CP(2, in_dims=(4, 5), out_dims=(3, 2)))
    with torch.no_grad():
        for mean, log_std in zip(layer.tensor.factors.mean, layer.tensor.factors.log_std, strict=True):
            log_std.fill_(math.log(0.1))
            log_std[0, 0] = math.log(1e-4)  # rank 0 knows of an entry that it is small: 6 nats
            mean[:, 0], mean[:, 1] = 0.0, 0.1 * math.sqrt(0.09)
    layer.tensor.update_variance(1.0)
    nats = slice_information(layer.tensor, TwoWindows.now(layer.tensor))[2]
    assert all(float(n[:, 0].sum()) > 5.0 > 1.0 > float(n[:, 1].sum()) for n in nats)
    with pytest.warns(rf.RankCollapseWarning):
        rf.prune_(layer)
    assert all(torch.all(mean > 0.0) for mean in layer.tensor.factors.mean)


def test_jitter_of_many_entries_is_not_taken_for_information() -> None:
    """At D = 20,000 the jitter of a dead slice amounts to thousands of nats; two windows cancel it."""
    config = rf.CP(2, in_dims=(10_000,), out_dims=(10_000,))
    tensor = BayesianTensor(config.build(10_000, 10_000), config, 0.5)
    for _ in range(30):
        kill(tensor, 0, 1)
        kill(tensor, 0, 1, axis_number=1)
        tensor.update_variance(1.0)
    variance = tensor.variances()[0][1]
    jitter_std = (0.5 * variance).sqrt()  # KL of D · 0.5 / 2 = 5000 nats
    average = WindowAverage(tensor)
    settled = [p.detach().clone() for p in tensor.factors.mean]
    windows = None
    for _ in range(2):
        for _ in range(4):
            with torch.no_grad():
                for mean, value in zip(tensor.factors.mean, settled, strict=True):
                    mean.copy_(value + jitter_std * torch.randn_like(value))
            update_all([average])
        windows = average.close_window()
    naive = slice_information(tensor, TwoWindows.now(tensor))[2]
    assert sum(float(n[:, 1].sum()) for n in naive) > 1000
    assert InformationRule().dead(tensor)[0].tolist() == [False, False]
    assert InformationRule().dead(tensor, windows)[0].tolist() == [False, True]


@each_format
def test_norm_rule_measures_the_part_of_the_weight_that_goes_through_a_rank(config: TensorConfig) -> None:
    tensor = make_tensor(config)
    format, means = tensor.format, [m.detach() for m in tensor.factors.mean]
    whole = format.reconstruct(means)
    for n, group in enumerate(format.rank_groups):
        for k, share in enumerate(RelativeNormRule().weight_of(tensor)[n]):
            rest = [torch.arange(g.size) for g in format.rank_groups]
            rest[n] = torch.tensor([j for j in range(group.size) if j != k])
            others = format.with_ranks([len(r) for r in rest]).reconstruct(format.restrict(means, rest))
            torch.testing.assert_close(share, (whole - others).norm() / whole.norm())


def test_norm_rule_finds_the_negligible_rank() -> None:
    tensor = make_tensor(rf.CP(3, in_dims=(4, 5), out_dims=(3, 2), inference="map"))
    with torch.no_grad():
        tensor.factors.mean[0][:, 2] *= 1e-5
    assert RelativeNormRule().dead(tensor)[0].tolist() == [False, False, True]


def test_norm_rule_finds_a_weight_that_vanished_as_a_whole() -> None:
    """Relative to itself nothing is small; relative to where it started everything is."""
    tensor = make_tensor(rf.TT((3, 4, 2), in_dims=(4, 5), out_dims=(3, 2), inference="map"))
    with torch.no_grad():
        for mean in tensor.factors.mean:
            mean *= 0.05
    assert all(group.all() for group in RelativeNormRule().dead(tensor))


@pytest.mark.parametrize("value", [-3, 0.0, float("nan"), float("inf"), True, "3"])
@pytest.mark.parametrize(
    ("rule", "option"),
    [
        (InformationRule, "nats"),
        (InformationRule, "signal_to_noise"),
        (InformationRule, "least_signal"),
        (InformationRule, "least_share"),
        (RelativeNormRule, "tolerance"),
        (VarianceRule, "epsilon"),
    ],
)
def test_limits_must_be_positive(rule: type[PruningRule], option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{option} must be positive and finite, got {value!r}"):
        rule(**{option: value})


def test_variance_rule_is_the_papers() -> None:
    tensor = make_tensor(CONFIGS[0])
    tensor.variance.copy_(torch.tensor([1e-1, 1e-6, 1e-3, 1e-9]))
    assert VarianceRule(1e-5).dead(tensor)[0].tolist() == [False, True, False, True]


def mixed_model() -> nn.Sequential:
    """A Bayesian layer, one of points, and one of fixed rank, which no rule looks at."""
    modes = ("bayes", "map", "fixed")
    return nn.Sequential(*(rf.Linear(6, 6, config=rf.CP(2, inference=inference)) for inference in modes))


def test_a_rule_that_does_not_suit_a_layer_is_refused_at_once_and_by_name() -> None:
    model = mixed_model()
    optimizer = torch.optim.Adam(rf.param_groups(model))
    message = r"InformationRule\(nats=3.*\) does not suit 1\.tensor, .*'map'; leave rule out, .*RelativeNormRule"

    def make(**options) -> rf.RankDetermination:
        return rf.RankDetermination(model, optimizer, num_data=10, total_steps=10, **options)

    with pytest.raises(ValueError, match=message):
        make(pruning=rf.Pruning(rule=InformationRule()))
    with pytest.raises(ValueError, match=message):
        make().prune(InformationRule())
    with pytest.raises(ValueError, match=message):
        rf.prune_(model, rule=InformationRule())


@pytest.mark.parametrize("rule", [None, RelativeNormRule(), VarianceRule(1e-5)], ids=str)
def test_rules_for_points_suit_every_layer(rule: PruningRule | None) -> None:
    model = mixed_model()
    optimizer = torch.optim.Adam(rf.param_groups(model))
    ranks = rf.RankDetermination(model, optimizer, num_data=10, total_steps=10, pruning=rf.Pruning(rule=rule))
    assert ranks.prune(rule) is None


# Real training ------------------------------------------------------------------------------------


def settle(tensor: BayesianTensor, true_factors: list[torch.Tensor], live: int) -> None:
    """Put the posterior where training ends: live ranks at the truth, the others at their prior."""
    with torch.no_grad():
        for mean, log_std, truth in zip(tensor.factors.mean, tensor.factors.log_std, true_factors, strict=True):
            mean.zero_()
            mean[:, :live] = truth
            log_std.fill_(math.log(0.05))
    tensor.update_variance(1.0)


@pytest.mark.parametrize("decayed", [True, False], ids=["decayed", "constant"])
@pytest.mark.parametrize("name", ["adam", "sgd"])
@pytest.mark.parametrize(("in_size", "out_size"), [(1, 1), (2, 2), (12, 10), (10_000, 40)], ids=lambda n: str(n))
def test_training_cuts_dead_ranks_and_no_live_one(name: str, decayed: bool, in_size: int, out_size: int) -> None:
    """D = in + out from 2 to 10,040: the optimizer's jitter neither hides a dead rank nor kills a live one."""
    live, steps, noise = min(in_size, out_size, 2), 360, 0.3
    truth = rf.CP(live, in_dims=(in_size,), out_dims=(out_size,)).build(in_size, out_size)
    # orthogonal columns: two random ones of two entries may be one within the noise
    factors = [torch.linalg.qr(f.float())[0] * f.float().norm() / live**0.5 for f in truth.random_factors(1.0)]
    model = rf.Embedding(in_size, out_size, config=rf.CP(live + 2, in_dims=(in_size,), out_dims=(out_size,)))
    settle(model.tensor, factors, live)
    table = truth.reconstruct(factors)
    groups = rf.param_groups(model, lr=1e-3 if name == "adam" else 0.05)
    optimizer = torch.optim.Adam(groups) if name == "adam" else torch.optim.SGD(groups)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1.0 - t / steps if decayed else 1.0)
    ranks = rf.RankDetermination(
        model, optimizer, num_data=max(in_size, 100) * out_size, total_steps=steps, warmup_steps=10
    )
    for _ in range(steps):
        index = torch.randint(in_size, (128,))
        target = table[index] + noise * torch.randn(128, out_size)
        nll = 0.5 * ((model(index) - target) / noise).square().mean()
        (nll + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        ranks.step()
    assert model.tensor.format.ranks == (live,)


def test_training_from_scratch_finds_the_planted_rank() -> None:
    x = torch.randn(100, 12)
    truth = rf.CP(2, in_dims=(4, 3), out_dims=(10,)).build(12, 10)
    y = x @ truth.reconstruct(truth.random_factors(0.3)).float() + 0.3 * torch.randn(100, 10)
    model = rf.Linear(12, 10, bias=False, config=rf.CP(4, in_dims=(4, 3), out_dims=(10,)))
    steps = 4000
    optimizer = torch.optim.Adam(rf.param_groups(model, lr=1e-2))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, 3.03 * (1 - t / steps)))
    ranks = rf.RankDetermination(model, optimizer, num_data=y.numel(), total_steps=steps)
    for _ in range(steps):
        nll = 0.5 * ((model(x) - y) / 0.3).square().mean()
        (nll + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        ranks.step()
    assert model.tensor.format.ranks == (2,)
