"""Sampling and KL with closed-form gradients, against the plain formulas and torch.distributions."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.distributions import kl_divergence as reference

from rankfold.gaussian import kl_divergence, reparametrize, taken_apart

SHAPES = [(3, 4), (1, 5, 2), (2, 3, 1, 2)]
VARIANCES = [(1, 4), (1, 1, 1), (2, 1, 1, 1)]  # shared along different axes


def arrays(dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    means = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in SHAPES]
    log_stds = [(0.3 * torch.randn(shape, dtype=torch.float64) - 1).requires_grad_() for shape in SHAPES]
    variances = [torch.rand(shape, dtype=torch.float64) + 0.1 for shape in VARIANCES]
    return means, log_stds, variances


def test_samples_are_mean_plus_std_times_noise() -> None:
    means, log_stds, _ = arrays()
    noise = torch.randn(sum(m.numel() for m in means), dtype=torch.float64)
    for sample, m, r, z in zip(
        reparametrize(means, log_stds, noise), means, log_stds, taken_apart(noise, means), strict=True
    ):
        torch.testing.assert_close(sample, m + r.exp() * z)


def test_gradients_of_samples() -> None:
    means, log_stds, _ = arrays()
    noise = torch.randn(sum(m.numel() for m in means), dtype=torch.float64)
    count = len(means)
    assert torch.autograd.gradcheck(lambda *p: tuple(reparametrize(p[:count], p[count:], noise)), (*means, *log_stds))


def test_kl_is_that_of_torch_distributions() -> None:
    means, log_stds, variances = arrays()
    expected = sum(
        reference(Normal(m, r.exp()), Normal(torch.zeros_like(m), v.sqrt().expand_as(m))).sum()
        for m, r, v in zip(means, log_stds, variances, strict=True)
    )
    torch.testing.assert_close(kl_divergence(means, log_stds, variances), expected)


def test_gradients_of_the_kl() -> None:
    means, log_stds, variances = arrays()
    count = len(means)
    assert torch.autograd.gradcheck(
        lambda *p: 0.7 * kl_divergence(p[:count], p[count:], variances), (*means, *log_stds)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_means_of_lower_precision_keep_their_dtype(dtype: torch.dtype) -> None:
    means, log_stds, variances = arrays(dtype)
    samples = reparametrize(means, log_stds, torch.randn(sum(r.numel() for r in log_stds), dtype=torch.float64))
    assert {sample.dtype for sample in samples} == {dtype}
    nats = kl_divergence(means, log_stds, variances)
    assert nats.dtype == torch.float64
    (nats + sum(sample.double().sum() for sample in samples)).backward()
    assert {m.grad.dtype for m in means} == {dtype}
    assert {r.grad.dtype for r in log_stds} == {torch.float64}


def test_gradients_lie_as_the_means_do_also_at_rank_one() -> None:
    """DDP minds the strides of axes of size 1, which is_contiguous() does not see."""
    means, log_stds = ([torch.zeros(4, 1, requires_grad=True) for _ in range(2)] for _ in range(2))
    samples = reparametrize(means, log_stds, torch.ones(8))
    odd = torch.ones(1, 4).t()
    assert odd.is_contiguous()
    assert odd.stride() != means[0].stride()
    gradients = torch.autograd.grad(samples, [*means, *log_stds], [odd, torch.ones(4, 1)])
    assert all(gradient.stride() == means[0].stride() for gradient in gradients)
