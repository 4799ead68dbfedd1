"""Redundant ranks become empty, and the weight stays what it was."""

import copy

import pytest
import torch
from torch import Tensor

import rankfold as rf
from rankfold.bayesian_tensor import BayesianTensor
from rankfold.pruning.redundancy import _transform, simplify_

CONFIGS = {
    "tucker": rf.Tucker(6, in_dims=(7, 8), out_dims=(9,)),
    "tt": rf.TT(6, in_dims=(7, 8), out_dims=(9, 6)),
    "ttm": rf.TTM(6, in_dims=(4, 5, 6), out_dims=(3, 2, 4)),
}


def make(config: rf.TensorConfig, std: float = 1e-3) -> BayesianTensor:
    torch.manual_seed(0)
    sizes = [torch.Size(dims).numel() for dims in (config.in_dims, config.out_dims)]
    tensor = rf.Linear(*sizes, config=config, dtype=torch.float64).tensor
    with torch.no_grad():
        for mean, log_std in zip(tensor.factors.mean, tensor.factors.log_std, strict=True):
            mean.normal_()
            log_std.fill_(torch.tensor(std).log())
    return tensor


def spread_three_directions(tensor: BayesianTensor, n: int) -> None:
    """Make the factors of rank ``n`` so that its six columns span three directions only."""
    (left, axis), (right, other) = tensor.format.rank_groups[n].axes
    generator = torch.Generator().manual_seed(n)
    mix = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    back = torch.linalg.pinv(mix)  # mix @ back = identity
    for factor, ax, matrix in ((left, axis, mix), (right, other, back.mT)):
        mean = tensor.factors.mean[factor].data
        part = mean.narrow(ax, 0, 3)
        mean.copy_(torch.tensordot(part, matrix, dims=([ax], [0])).movedim(-1, ax))


def weight(tensor: BayesianTensor) -> torch.Tensor:
    return tensor.format.reconstruct([m.detach() for m in tensor.factors.mean])


def num_above_noise(tensor: BayesianTensor, n: int) -> int:
    alive = []
    for factor, axis in tensor.format.rank_groups[n].axes:
        signal = tensor.factors.mean[factor].detach().square().movedim(axis, 0).flatten(1).sum(1)
        noise = (2 * tensor.factors.log_std[factor].detach()).exp().movedim(axis, 0).flatten(1).sum(1)
        alive.append(signal > noise)
    return int(torch.stack(alive).all(0).sum())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_rank_that_spans_three_directions_keeps_three_columns(name: str) -> None:
    tensor = make(CONFIGS[name])
    for n in range(len(tensor.format.ranks)):
        spread_three_directions(tensor, n)
        assert num_above_noise(tensor, n) == 6
    before = weight(tensor)
    assert simplify_(tensor)
    assert torch.linalg.norm(weight(tensor) - before) < 1e-4 * torch.linalg.norm(before)
    for n in range(len(tensor.format.ranks)):
        assert num_above_noise(tensor, n) == 3


@pytest.mark.parametrize("name", CONFIGS)
def test_the_basis_is_that_of_the_singular_values(name: str) -> None:
    tensor = make(CONFIGS[name], std=1e-6)
    before = weight(tensor)
    simplify_(tensor)
    torch.testing.assert_close(weight(tensor), before)
    # around one rank all that is left of it is orthogonal to each other, and so is all that is right of it
    format, n = tensor.format, len(tensor.format.ranks) - 1  # the last rank was changed last
    letter = format.subscripts[format.rank_groups[n].axes[0][0]][format.rank_groups[n].axes[0][1]]
    parts = [[m.detach() for m in tensor.factors.mean] for _ in range(6)]
    for k, part in enumerate(parts):
        for factor, axis in format.rank_groups[n].axes:
            part[factor] = part[factor] * (torch.arange(6) == k).double().view(
                [-1 if x == letter else 1 for x in format.subscripts[factor]]
            )
            assert part[factor].shape[axis] == 6
    slices = torch.stack([format.reconstruct(part).flatten() for part in parts])
    gram = slices @ slices.mT
    assert (gram - gram.diag().diag()).abs().max() < 1e-8 * gram.max()
    assert (gram.diag().diff() <= 0).all()  # in falling order


def test_components_of_cp_that_are_not_parallel_are_left_alone() -> None:
    tensor = make(rf.CP(6, in_dims=(7, 8), out_dims=(9,)))
    before = copy.deepcopy(tensor.state_dict())
    assert not simplify_(tensor)
    assert all(torch.equal(value, before[key]) for key, value in tensor.state_dict().items())


@pytest.mark.parametrize("inference", ["map", "fixed"])
def test_points_have_no_noise_and_are_left_alone(inference: str) -> None:
    layer = rf.Linear(56, 9, config=rf.Tucker(3, in_dims=(7, 8), out_dims=(9,), inference=inference))
    assert not simplify_(layer.tensor)


def test_frozen_factors_are_left_alone() -> None:
    tensor = parallel_components(std=0.05, gap=0.05)
    tensor.factors.mean[0].requires_grad_(False)
    before = copy.deepcopy(tensor.state_dict())
    assert not simplify_(tensor)
    assert all(torch.equal(value, before[key]) for key, value in tensor.state_dict().items())


def test_the_spread_follows_the_basis() -> None:
    tensor = make(CONFIGS["tucker"])
    with torch.no_grad():
        tensor.factors.log_std[0].normal_()
    basis = torch.randn(6, 6, dtype=torch.float64)
    mean, std = tensor.factors.mean[0].detach().clone(), tensor.factors.log_std[0].detach().exp()
    draws = (mean + std * torch.randn(40_000, *mean.shape, dtype=torch.float64)) @ basis
    with torch.no_grad():
        _transform(tensor, tensor.format.rank_groups[0], [basis, torch.linalg.inv(basis).mT])
    torch.testing.assert_close(tensor.factors.mean[0].detach(), mean @ basis)
    torch.testing.assert_close(tensor.factors.log_std[0].detach().exp(), draws.std(0), rtol=0.03, atol=0.0)


def parallel_components(std: float, gap: float) -> BayesianTensor:
    """Six components, the second of which is half of the first, turned by ``gap``."""
    tensor = make(rf.CP(6, in_dims=(7, 8), out_dims=(9,)), std)
    with torch.no_grad():
        for mean in tensor.factors.mean:
            turned = mean[:, 0] + gap * mean[:, 0].norm() * torch.nn.functional.normalize(mean[:, 1], dim=0)
            mean[:, 1] = 0.8 * turned
    return tensor


def component_between_two(std: float) -> BayesianTensor:
    """Three components whose sum is nearly that of two: ``(a + d) ⊗ (b + e) ⊗ (c + f)`` takes a part of both."""
    tensor = make(rf.CP(3, in_dims=(7, 8), out_dims=(9,)), std)
    with torch.no_grad():
        for mean in tensor.factors.mean:
            mean[:, 2] = 0.25 * (mean[:, 0] + mean[:, 1])
    return tensor


def weight_noise(tensor: BayesianTensor) -> Tensor:
    draws = torch.stack([tensor.format.reconstruct(tensor.factors.sample()).detach() for _ in range(50)])
    return (draws - weight(tensor)).flatten(1).norm(dim=1).mean()


def is_empty(tensor: BayesianTensor, component: int) -> bool:
    return all(not mean[:, component].any() for mean in tensor.factors.mean)


def test_parallel_components_of_cp_become_one() -> None:
    tensor = parallel_components(std=0.05, gap=0.05)
    before = weight(tensor)
    others = [mean[:, 2:].detach().clone() for mean in tensor.factors.mean]
    assert simplify_(tensor)
    assert [is_empty(tensor, k) for k in range(6)] == [k == 1 for k in range(6)]
    for mean, other in zip(tensor.factors.mean, others, strict=True):
        torch.testing.assert_close(mean[:, 2:].detach(), other, rtol=0.1, atol=0.1)  # the larger one absorbs it
    assert torch.linalg.norm(weight(tensor) - before) < weight_noise(tensor)


@pytest.mark.parametrize("std", [0.05, 0.3, 0.6, 3.0])
@pytest.mark.parametrize("rank", [6, 30])
def test_the_weight_stays_nearly_the_same_however_uncertain_components_are(std: float, rank: int) -> None:
    tensor = make(rf.CP(rank, in_dims=(7, 8), out_dims=(9,)), std)
    before = weight(tensor)
    simplify_(tensor)
    # 3 % of the squared norm, and as much again where changes happen to add up
    assert (weight(tensor) - before).square().sum() < 0.06 * before.square().sum()


def test_components_do_not_grow_against_each_other() -> None:
    """Many near three directions have a best fit of a few large, opposed ones, of which a sample would be far off."""
    tensor = make(rf.CP(50, in_dims=(28, 28), out_dims=(16, 32)), std=0.05)
    torch.manual_seed(0)
    with torch.no_grad():
        for mean in tensor.factors.mean:
            directions = torch.randn(len(mean), 3, dtype=mean.dtype)
            mean.copy_(directions[:, torch.randint(3, (50,))] + 0.05 * torch.randn(mean.shape, dtype=mean.dtype))
    before = weight_noise(tensor)
    assert simplify_(tensor)
    assert sum(is_empty(tensor, k) for k in range(50)) >= 30
    assert weight_noise(tensor) < 1.5 * before  # at most √2, and some chance


def test_a_default_device_elsewhere_is_no_matter() -> None:
    tensor = parallel_components(std=1e-3, gap=1e-6)
    with torch.device("meta"):
        assert simplify_(tensor)


def test_a_component_between_two_is_absorbed_by_both() -> None:
    tensor = component_between_two(std=0.05)
    before = weight(tensor)
    sizes = [mean.norm(dim=0)[:2] for mean in tensor.factors.mean]
    assert simplify_(tensor)
    assert [is_empty(tensor, k) for k in range(3)] == [False, False, True]
    assert torch.linalg.norm(weight(tensor) - before) < weight_noise(tensor)
    growth = torch.stack([mean.norm(dim=0)[:2] / size for mean, size in zip(tensor.factors.mean, sizes, strict=True)])
    torch.testing.assert_close(growth, growth[:1].expand_as(growth))  # as much in every mode


def test_components_of_which_only_many_together_depend_on_each_other_are_absorbed() -> None:
    """A matrix of rank 5 as a sum of eight outer products: no five of them are worth fewer."""
    tensor = make(rf.CP(8, in_dims=(7, 8), out_dims=(9,)), std=1e-3)
    with torch.no_grad():
        rows, columns, common = tensor.factors.mean
        mix = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q[:5]
        for mean in (rows, columns):
            mean.copy_(mean[:, :5] @ mix)
        common.copy_(common[:, :1].expand_as(common))
    before = weight(tensor)
    assert simplify_(tensor)
    assert sum(is_empty(tensor, k) for k in range(8)) == 3
    assert torch.linalg.norm(weight(tensor) - before) < weight_noise(tensor)


def test_what_absorbs_is_the_best_fit() -> None:
    """Gradient descent on the distance between whole tensors finds nothing nearer."""
    tensor = component_between_two(std=0.05)
    with torch.no_grad():
        for mean in tensor.factors.mean:
            mean[:, 2] += 0.05 * torch.randn(len(mean), dtype=mean.dtype)
    before = weight(tensor)
    columns = [mean[:, :2].detach().clone().requires_grad_() for mean in tensor.factors.mean]
    search = torch.optim.LBFGS(columns, max_iter=2000, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def distance() -> Tensor:
        search.zero_grad()
        loss = (torch.einsum("ik,jk,lk->ijl", *columns).reshape(before.shape) - before).square().sum()
        loss.backward()
        return loss

    search.step(distance)
    assert simplify_(tensor)
    torch.testing.assert_close((weight(tensor) - before).square().sum(), distance().detach(), rtol=1e-3, atol=0.0)


def test_components_further_apart_than_their_noise_stay_two() -> None:
    assert not simplify_(parallel_components(std=1e-4, gap=0.3))


@pytest.mark.parametrize("name", ["cp", "tucker"])
def test_averaged_copies_follow_and_optimizer_state_keeps_its_average(name: str) -> None:
    tensor = parallel_components(0.05, 0.05) if name == "cp" else make(CONFIGS["tucker"])
    if name == "tucker":
        spread_three_directions(tensor, 0)
    follower = copy.deepcopy(tensor)
    optimizer = torch.optim.Adam(tensor.parameters(), lr=0.0)
    sum(p.square().sum() for p in tensor.parameters()).backward()
    optimizer.step()
    state = optimizer.state[tensor.factors.mean[0]]["exp_avg_sq"].clone()
    assert simplify_(tensor, [optimizer], [follower])
    for mean, other in zip(tensor.factors.mean, follower.factors.mean, strict=True):
        assert torch.equal(mean, other)
    after = optimizer.state[tensor.factors.mean[0]]["exp_avg_sq"]
    wanted = state if name == "cp" else state.mean(1, keepdim=True).expand_as(state)
    torch.testing.assert_close(after, wanted)


def test_rank_determination_looks_for_redundancy_when_it_is_due() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(rf.Linear(56, 9, config=CONFIGS["tucker"]))
    tensor = model[0].tensor
    optimizer = torch.optim.SGD(rf.param_groups(model), lr=0.0)
    pruning = rf.Pruning(at=(1.0,), simplify_at=(0.5,), checks=2, patience=1)
    ranks = rf.RankDetermination(model, optimizer, num_data=100, total_steps=10, pruning=pruning)
    with torch.no_grad():
        for log_std in tensor.factors.log_std:
            log_std.fill_(-6.0)
    for n in range(3):
        spread_three_directions_in_float32(tensor, n)
    seen = []
    for _ in range(6):
        (model(torch.randn(4, 56)).square().mean() + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
        seen.append([num_above_noise(tensor, n) for n in range(3)])
    assert seen[3] == [6, 6, 6]
    assert seen[4] == [3, 3, 3]


@pytest.mark.parametrize("seed", [0, 4])
def test_a_convolution_finds_the_planted_components_of_cp(seed: int) -> None:
    torch.manual_seed(seed)
    planted, model = (torch.nn.Sequential(rf.Conv2d(6, 12, 3, padding=1, config=rf.CP(rank))) for rank in (4, 12))
    x = torch.randn(200, 6, 6, 6)
    with torch.no_grad():
        y = planted.eval()(x)
        y += 0.3 * y.std() * torch.randn_like(y)
    likelihood = rf.GaussianLikelihood(initial_std=float(y.std()))
    optimizer = torch.optim.Adam(rf.param_groups(torch.nn.ModuleList([model, likelihood]), lr=1e-2))
    ranks = rf.RankDetermination(model, optimizer, num_data=y.numel(), total_steps=400)
    for batch in torch.randint(len(x), (400, 16)):
        (likelihood(model(x[batch]), y[batch]) + ranks.kl()).backward()
        optimizer.step()
        optimizer.zero_grad()
        ranks.step()
    assert model[0].tensor.format.ranks == (4,)


def spread_three_directions_in_float32(tensor: BayesianTensor, n: int) -> None:
    (left, axis), (right, other) = tensor.format.rank_groups[n].axes
    mix = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(n)))[0][:3]
    for factor, ax in ((left, axis), (right, other)):
        mean = tensor.factors.mean[factor].data
        mean.copy_(torch.tensordot(mean.narrow(ax, 0, 3), mix, dims=([ax], [0])).movedim(-1, ax))


def test_bad_moments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"simplify_at must hold fractions of total_steps in \(0, 1\], got \(1.5,\)"):
        rf.Pruning(simplify_at=(1.5,))


@pytest.mark.parametrize("config", [rf.CP(4), rf.Tucker(3), rf.TT(4), rf.TTM(4)], ids=lambda c: type(c).__name__)
def test_a_weight_that_is_zero_is_left_alone(config: rf.TensorConfig) -> None:
    """As of a layer that started so and has had no gradient yet."""
    layer = rf.Linear.from_dense(zero_layer(), config, trained=True)
    before = [mean.clone() for mean in layer.tensor.factors.mean]
    simplify_(layer.tensor)
    assert not layer.eval().tensor.matrix().any()
    for mean, old in zip(layer.tensor.factors.mean, before, strict=True):
        assert torch.isfinite(mean).all()
        assert mean.shape == old.shape


def zero_layer() -> torch.nn.Linear:
    dense = torch.nn.Linear(12, 10)
    torch.nn.init.zeros_(dense.weight)
    return dense
