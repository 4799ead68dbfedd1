"""Triton kernels for samples, KL and half step 2 of Gaussian arrays, slice by slice.

Arrays lie wherever they are: ``addresses`` are those of all means, then of all log-stds, ``arrays`` of each. A row of
a table describes a slice, which shares one prior variance. Sums are in float32.
"""

import triton
import triton.language as tl

from rankfold.kernels.gather_triton import load
from rankfold.priors import VARIANCE_FLOOR

FLOOR: tl.constexpr = tl.constexpr(VARIANCE_FLOOR)


@triton.jit
def _row(table, n):
    """Number of the array, its place among all, and of the slice: start, number and distance of runs, their length."""
    row = table + n * 7
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4), tl.load(row + 5)


@triton.jit
def _pointers(addresses, array, arrays, MEAN: tl.constexpr):
    """To the means and the log-stds of an array."""
    mean = tl.load(addresses + array).to(tl.pointer_type(MEAN))
    return mean, tl.load(addresses + arrays + array).to(tl.pointer_type(tl.float32))


@triton.jit
def _within(entry, start, step, inner):
    """Where in their array the entries of a slice are."""
    return start + entry // inner * step + entry % inner


@triton.jit
def _noise(log_std, live):
    """σ², 0 where an entry is not live."""
    return tl.where(live, tl.exp(2.0 * log_std), 0.0)


@triton.jit(do_not_specialize=["arrays"])
def slice_sample(
    addresses, noise, table, samples, deviations, arrays, MEAN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``u = μ + σ z`` of the part in a row of the table, and ``σ z``; noise and deviations lie end to end."""
    row = table + tl.program_id(0) * 5
    array, place, start, length, first_sample = (
        tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)
    )  # fmt: skip
    means, log_stds = _pointers(addresses, array, arrays, MEAN)
    for first in range(0, length, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        live, at = entry < length, start + entry
        deviation = tl.exp(load(log_stds, at, live)) * load(noise, place + at, live)
        tl.store(deviations + place + at, deviation, mask=live)
        tl.store(samples + first_sample + at, (load(means, at, live) + deviation).to(MEAN), mask=live)


@triton.jit(do_not_specialize=["arrays"])
def slice_kl(
    addresses, variance, table, beta, nats, gradient, arrays, size, share,
    WEIGHTED: tl.constexpr, MEAN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``nats[n]`` of the slice in row n of the table, and the gradient of its entries.

    Gradients by all means, ``size`` numbers, lie end to end, and then those by all log-stds. Everything is multiplied
    by β times ``share`` if it is weighted.
    """
    array, place, start, outer, step, inner = _row(table, tl.program_id(0))
    means, log_stds = _pointers(addresses, array, arrays, MEAN)
    v = tl.load(variance + tl.load(table + tl.program_id(0) * 7 + 6)).to(tl.float32)
    weight = share
    if WEIGHTED:
        weight *= tl.load(beta).to(tl.float32)
    total = outer * inner
    moments, sums = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(0, total, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        live = entry < total
        at = _within(entry, start, step, inner)
        mean, log_std = load(means, at, live), load(log_stds, at, live)
        noise = _noise(log_std, live)
        moments += mean * mean + noise
        sums += log_std
        # ∂KL/∂μ = μ / v, ∂KL/∂log σ = σ² / v − 1
        tl.store(gradient + place + at, weight * (mean / v), mask=live)
        tl.store(gradient + size + place + at, weight * (noise / v - 1.0), mask=live)
    # Σ ½ (μ² + σ²)/v + ½ log v − log σ − ½
    value = 0.5 * (tl.sum(moments) / v + total * (tl.log(v) - 1.0)) - tl.sum(sums)
    tl.store(nats + tl.program_id(0), weight * value)


@triton.jit
def _best_variance(m, count, squared_eta, HALF_CAUCHY: tl.constexpr):
    """λ* of a prior, as in :mod:`rankfold.priors`, for a second moment ``m`` of ``count`` entries."""
    if HALF_CAUCHY:
        # λ* = 2 M η² / (b + √(b² + 4 (D+2) M η²)) = (√(…) − b) / (2 (D+2)) with b = D η² − M
        b = count * squared_eta - m
        root = tl.sqrt(b * b + 4.0 * (count + 2.0) * m * squared_eta)
        both = tl.abs(b) + root
        best = tl.where(
            b > 0,
            2.0 * m * squared_eta / tl.maximum(both, FLOOR * FLOOR, propagate_nan=tl.PropagateNan.ALL),
            both / (2.0 * (count + 2.0)),
        )
    else:
        # λ* = M / (D + 1)
        best = m / (count + 1.0)
    return tl.maximum(best, FLOOR, propagate_nan=tl.PropagateNan.ALL)


@triton.jit(do_not_specialize=["arrays"])
def slice_variances(
    addresses, table, ranks, arrays, squared_eta, step_size,
    HALF_CAUCHY: tl.constexpr, MEAN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``λ ← γ λ* + (1 − γ) λ`` for the rank in a row of ``ranks``, with ``M = Σ μ² + σ²`` over its slices.

    Behind the addresses of the arrays are those of λ, a vector for every tensor.
    """
    rank = ranks + tl.program_id(0) * 4
    count = 0.0
    sums = tl.zeros((BLOCK,), tl.float32)
    for n in range(tl.load(rank), tl.load(rank + 1)):
        array, _, start, outer, step, inner = _row(table, n)
        means, log_stds = _pointers(addresses, array, arrays, MEAN)
        total = outer * inner
        count += total
        for first in range(0, total, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            live = entry < total
            at = _within(entry, start, step, inner)
            mean = load(means, at, live)
            sums += mean * mean + _noise(load(log_stds, at, live), live)
    best = _best_variance(tl.sum(sums), count, squared_eta, HALF_CAUCHY)
    vector = tl.load(addresses + 2 * arrays + tl.load(rank + 2)).to(tl.pointer_type(tl.float32))
    at = vector + tl.load(rank + 3)
    # in this form exactly λ* for γ = 1, however much larger λ was
    tl.store(at, best + (1.0 - step_size) * (tl.load(at) - best))
