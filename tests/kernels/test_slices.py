"""The kernels of samples, KL and half step 2 against the plain formulas, over arrays of every kind of slice."""

import contextlib
from dataclasses import replace

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import rankfold as rf
from rankfold import gaussian
from rankfold.bayesian_tensor import BayesianTensor, update_variances
from rankfold.kernels import launch, slice_tables, slices
from rankfold.posterior import joint_kl
from rankfold.priors import ShrinkagePrior

SHAPES = [(3, 40), (40, 3), (5, 7, 6), (2, 3, 4, 5), (9,), (4, 3), (1, 1)]
VARIANCES = [(1, 40), (40, 1), (1, 7, 1), (2, 1, 1, 1), 0.7, 0.7, (1, 1)]  # all axes, and no axis


def arrays(device: str, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor], list[Tensor | float]]:
    means = [nn.Parameter(torch.randn(shape, device=device, dtype=dtype)) for shape in SHAPES]
    log_stds = [nn.Parameter(0.5 * torch.randn(shape, device=device) - 1) for shape in SHAPES]
    variances = [v if isinstance(v, float) else torch.rand(v, device=device) + 0.1 for v in VARIANCES]
    return means, log_stds, variances


class Launches(contextlib.AbstractContextManager):
    """Counts how often the kernel of the KL was used."""

    def __enter__(self) -> "Launches":
        self.count = 0
        self.kl, slices.kl = slices.kl, self
        return self

    def __exit__(self, *_: object) -> None:
        slices.kl = self.kl

    def __call__(self, *args: object) -> tuple[Tensor, list[Tensor]]:
        self.count += 1
        return self.kl(*args)


def exact(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("most", "beta"), [(4, None), (4096, 0.7)])  # slices cut into parts, or whole and weighted
def test_kl_and_gradients(
    device: str, dtype: torch.dtype, most: int, beta: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_tables, "_MOST_ENTRIES", most)
    monkeypatch.setattr(slices, "penalties_of", slice_tables.penalties_of.__wrapped__)
    means, log_stds, variances = arrays(device, dtype)
    assert slices.usable(means, log_stds)
    weight = None if beta is None else gaussian.Weight(torch.tensor(beta, device=device), 3)
    with Launches() as launches:
        nats = gaussian.kl_divergence(means, log_stds, variances, weight)
    assert launches.count == 1
    (0.3 * nats).backward()
    true_means, true_log_stds = exact(means), exact(log_stds)
    with Launches() as launches:
        truth = gaussian.kl_divergence(
            true_means, true_log_stds, [v if isinstance(v, float) else v.double() for v in variances], weight
        )
    assert launches.count == 0
    (0.3 * truth).backward()
    torch.testing.assert_close(nats.double(), truth, rtol=1e-5, atol=1e-4)
    for found, expected in zip((*means, *log_stds), (*true_means, *true_log_stds), strict=True):
        assert found.grad.dtype == found.dtype
        rtol = 1e-5 if found.dtype == torch.float32 else 1e-2
        torch.testing.assert_close(found.grad.double(), expected.grad, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("most", [4, 4096])
def test_samples_and_gradients(device: str, dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_tables, "_MOST_ENTRIES", most)
    monkeypatch.setattr(slices, "samples_of", slice_tables.samples_of.__wrapped__)
    means, log_stds, _ = arrays(device, dtype)
    noise = torch.randn(sum(mean.numel() for mean in means), device=device)
    samples = gaussian.reparametrize(means, log_stds, noise)
    weights = [torch.randn_like(u) for u in samples]
    sum((u * w).sum() for u, w in zip(samples, weights, strict=True)).backward()
    parts = noise.double().split([mean.numel() for mean in means])
    for n, (mean, log_std) in enumerate(zip(means, log_stds, strict=True)):
        deviation = log_std.detach().double().exp() * parts[n].view(mean.shape)
        rtol = 1e-5 if dtype == torch.float32 else 1e-2
        assert samples[n].dtype == dtype
        assert samples[n].is_contiguous()
        assert samples[n].data_ptr() % 16 == 0
        torch.testing.assert_close(samples[n].double(), mean.double() + deviation, rtol=rtol, atol=1e-6)
        torch.testing.assert_close(mean.grad, weights[n])  # ∂u/∂μ = 1
        torch.testing.assert_close(log_std.grad.double(), weights[n] * deviation, rtol=rtol, atol=1e-6)  # σ z


def test_samples_are_drawn_by_the_kernel_where_it_can_be(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, draw = [], slices.sample
    monkeypatch.setattr(slices, "sample", lambda *args: drawn.append(args) or draw(*args))
    layer = rf.Linear(12, 8, config=rf.TTM(4, order=2)).to(device)
    layer(torch.randn(3, 12, device=device)).sum().backward()
    layer.eval()(torch.randn(3, 12, device=device))
    assert len(drawn) == 1
    assert all(parameter.grad is not None for parameter in layer.parameters())


FORMATS = [rf.CP(3), rf.Tucker((2, 3, 2, 1), order=2), rf.TT((3, 1, 2), order=2), rf.TTM((4, 3), order=3)]


def tensors(device: str, prior: ShrinkagePrior) -> list[BayesianTensor]:
    made = []
    for config in FORMATS:
        config = replace(config, prior=prior)
        tensor = BayesianTensor(config.build(24, 18), config, 0.2, device=device, dtype=torch.float32)
        with torch.no_grad():
            for parameter in tensor.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        made.append(tensor)
    return made


@pytest.mark.parametrize("prior", [rf.LogUniform(), rf.HalfCauchy(), rf.HalfCauchy(0.1)], ids=str)
def test_variances_of_several_tensors_together(device: str, prior: ShrinkagePrior) -> None:
    ours = tensors(device, prior)
    expected = []
    for tensor in ours:
        moments = tensor.second_moments()  # plain
        best = tensor.prior.best_variance(moments, tensor.count)
        expected.append(torch.lerp(tensor.variance, best, 0.7))
    update_variances(ours, 0.7)
    for tensor, variance in zip(ours, expected, strict=True):
        torch.testing.assert_close(tensor.variance, variance, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("prior", [rf.LogUniform(), rf.HalfCauchy()], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1e-8])
def test_a_whole_step_leaves_nothing_of_a_much_larger_variance(
    device: str, prior: ShrinkagePrior, scale: float
) -> None:
    for tensor in tensors(device, prior):
        with torch.no_grad():
            for n, (mean, log_std) in enumerate(zip(tensor.factors.mean, tensor.factors.log_std, strict=True)):
                mean.mul_(scale)
                log_std.fill_(float(torch.log(torch.tensor(scale))) + n)
        best = tensor.prior.best_variance(tensor.second_moments(), tensor.count)
        tensor.variance.fill_(1.0)
        update_variances([tensor], 1.0)
        torch.testing.assert_close(tensor.variance, best, rtol=1e-5, atol=0.0)


def test_weak_variances_are_in_float32_whatever_the_default_dtype(device: str) -> None:
    means, log_stds, _ = arrays(device)
    variances = [0.0123] * len(means)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        found = slices.kl(means, log_stds, variances)[0]
    finally:
        torch.set_default_dtype(default)
    torch.testing.assert_close(found, gaussian.kl_divergence([m.detach() for m in means], log_stds, variances))


def test_the_kernel_runs_on_a_model_before_and_after_pruning(device: str) -> None:
    layers = rf.Linear(12, 8, config=rf.TTM(4, order=2)), rf.Linear(8, 6, config=rf.Tucker(2, order=2))
    model = torch.nn.Sequential(*layers).to(device)
    for _ in range(2):
        parts = [layer.tensor for layer in model] + [layer.bias_vector for layer in model]
        with Launches() as launches:
            together = joint_kl([part.beside_prior() for part in parts])
        assert launches.count == 1
        with pytest.MonkeyPatch.context() as plain:
            plain.setattr(launch, "DEVICES", ())
            apart = sum(part.kl() for part in parts)
            second_moments = [layer.tensor.second_moments() for layer in model]
        torch.testing.assert_close(together, apart, rtol=1e-5, atol=1e-4)
        expected = [
            layer.tensor.prior.best_variance(moments, layer.tensor.count)
            for layer, moments in zip(model, second_moments, strict=True)
        ]
        update_variances([layer.tensor for layer in model], 1.0)
        torch.testing.assert_close([layer.tensor.variance for layer in model], expected)
        model[0].tensor.variance[1] = 1e-9
        rf.prune_(model, rule=rf.VarianceRule(1e-8))
    assert model[0].tensor.format.ranks == (2,)


class Operations(TorchDispatchMode):
    """Counts what would run on a device: everything but views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operations_of_a_step(layers: int, device: str) -> tuple[int, int]:
    model = torch.nn.Sequential(*[rf.Linear(8, 8, config=rf.TTM(3, order=2)) for _ in range(layers)]).to(device)
    optimizer = torch.optim.SGD(rf.param_groups(model))
    ranks = rf.RankDetermination(model, optimizer, num_data=100, warmup_steps=10, snapshots=False)
    for _ in range(2):
        model(torch.randn(4, 8, device=device)).sum().backward()
        with Operations() as kl:
            ranks.kl_backward()
        optimizer.step()
        with Operations() as step:
            ranks.step()
    return kl.count, step.count


def test_kl_and_half_step_take_as_few_operations_for_many_layers_as_for_two(device: str) -> None:
    assert operations_of_a_step(2, device) == operations_of_a_step(6, device)


def test_double_precision_is_left_to_torch(device: str) -> None:
    means, log_stds, _ = arrays(device, torch.float64)
    assert not slices.usable(means, [log_std.double() for log_std in log_stds])


def test_tensors_of_other_kinds_are_left_to_torch(device: str) -> None:
    means, log_stds, _ = arrays(device)
    assert slices.usable(means, log_stds)
    assert not slices.usable([*means[:-1], means[-1].as_subclass(Other)], log_stds)


def test_gaps_and_unlike_dtypes_are_left_to_torch(device: str) -> None:
    means, log_stds, _ = arrays(device)
    assert not slices.usable([nn.Parameter(means[0].detach().T), *means[1:]], log_stds)
    assert not slices.usable(means, [nn.Parameter(log_stds[0].detach().T), *log_stds[1:]])
    assert not slices.usable([nn.Parameter(means[0].detach().bfloat16()), *means[1:]], log_stds)


def test_arrays_that_come_and_go_are_left_to_torch(device: str) -> None:
    means, log_stds, _ = arrays(device)
    assert slices.usable(means, log_stds)
    assert not slices.usable([means[0] + 0.0, *means[1:]], log_stds)
    assert not slices.usable(means, [log_stds[0].detach(), *log_stds[1:]])


def test_arrays_are_found_where_they_move(device: str) -> None:
    means, log_stds, variances = arrays(device)
    before = gaussian.kl_divergence(means, log_stds, variances).item()
    with torch.no_grad():
        for array in (*means, *log_stds):
            old, array.data = array.data, array.data.clone()
            old.fill_(torch.nan)
    assert gaussian.kl_divergence(means, log_stds, variances).item() == before


class Other(Tensor):
    pass


def test_without_a_compiler_plain_torch_takes_over(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*_: object) -> None:
        raise RuntimeError("no compiler was found")

    monkeypatch.setattr(slices, "kl", no_compiler)
    monkeypatch.setattr(launch, "_failed", False)
    means, log_stds, variances = arrays(device)
    with pytest.warns(RuntimeWarning, match="no compiler was found"):
        nats = gaussian.kl_divergence(means, log_stds, variances)
    monkeypatch.setattr(launch, "DEVICES", ())
    torch.testing.assert_close(nats, gaussian.kl_divergence(means, log_stds, variances))


@pytest.mark.parametrize("eta", [1, 2, numpy.float32(0.1), numpy.int64(3)], ids=repr)
def test_numbers_that_kernels_are_given_are_python_s_floats(device: str, eta: float, monkeypatch) -> None:
    """An integer 1 is a constant to Triton, in the compiled form that other priors of the same shapes share."""
    given = []
    monkeypatch.setattr(launch, "start", lambda *args: given.append(args[4]))
    tensors(device, rf.HalfCauchy(eta))
    assert given
    assert all(type(number) is float for numbers in given for number in numbers)


@pytest.mark.parametrize("prior", [rf.LogUniform(), rf.HalfCauchy()], ids=str)
def test_a_rank_that_holds_nan_has_no_variance(device: str, prior: ShrinkagePrior) -> None:
    for tensor in tensors(device, prior):
        with torch.no_grad():
            tensor.factors.mean[0].view(-1)[0] = torch.nan
        plain = torch.lerp(tensor.variance, tensor.prior.best_variance(tensor.second_moments(), tensor.count), 0.7)
        update_variances([tensor], 0.7)
        torch.testing.assert_close(tensor.variance, plain, rtol=1e-5, atol=1e-9, equal_nan=True)
        assert tensor.variance.isnan().any()


def test_memory_that_is_lacking_once_does_not_end_the_kernels(device: str, monkeypatch) -> None:
    def no_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    means, log_stds, variances = arrays(device)
    with monkeypatch.context() as once:
        once.setattr(slices, "kl", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            gaussian.kl_divergence(means, log_stds, variances)
    assert slices.usable(means, log_stds)
