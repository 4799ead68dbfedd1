"""Triton kernels for the KL and the second moments of Gaussian arrays, slice by slice.

All arrays lie end to end: first their means, ``size`` numbers, then their log-stds. A row of a table describes a
slice, which shares one prior variance: ``outer`` runs of ``inner`` neighbours, ``step`` apart. Sums are in float32.
"""

import triton
import triton.language as tl

from rankfold.kernels.gather_triton import load


@triton.jit
def _row(table, n):
    """Start, number and distance of runs, and their length."""
    row = table + n * 5
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)


@triton.jit
def _place(entry, start, step, inner):
    """Where the entries of a slice are."""
    return start + entry // inner * step + entry % inner


@triton.jit
def _noise(log_std, live):
    """σ², 0 where an entry is not live."""
    return tl.where(live, tl.exp(2.0 * log_std), 0.0)


@triton.jit
def slice_kl(
    flat, variance, table, beta, nats, gradient, size, share, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``nats[n]`` of the slice in row n of the table, and the gradient of its entries, laid out as ``flat`` is.

    Both are multiplied by β times ``share`` if they are weighted.
    """
    start, outer, step, inner = _row(table, tl.program_id(0))
    v = tl.load(variance + tl.load(table + tl.program_id(0) * 5 + 4)).to(tl.float32)
    weight = share
    if WEIGHTED:
        weight *= tl.load(beta).to(tl.float32)
    total = outer * inner
    moments, log_stds = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for first in range(0, total, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        live = entry < total
        at = _place(entry, start, step, inner)
        mean, log_std = load(flat, at, live), load(flat + size, at, live)
        noise = _noise(log_std, live)
        moments += mean * mean + noise
        log_stds += log_std
        # ∂KL/∂μ = μ / v, ∂KL/∂log σ = σ² / v − 1
        tl.store(gradient + at, weight * (mean / v), mask=live)
        tl.store(gradient + size + at, weight * (noise / v - 1.0), mask=live)
    # Σ ½ (μ² + σ²)/v + ½ log v − log σ − ½
    value = 0.5 * (tl.sum(moments) / v + total * (tl.log(v) - 1.0)) - tl.sum(log_stds)
    tl.store(nats + tl.program_id(0), weight * value)


@triton.jit
def slice_moments(flat, table, bounds, moments, size, BLOCK: tl.constexpr):
    """``moments[k] = Σ μ² + σ²`` over the slices in rows ``bounds[k]`` to ``bounds[k + 1]``."""
    k = tl.program_id(0)
    sums = tl.zeros((BLOCK,), tl.float32)
    for n in range(tl.load(bounds + k), tl.load(bounds + k + 1)):
        start, outer, step, inner = _row(table, n)
        total = outer * inner
        for first in range(0, total, BLOCK):
            entry = first + tl.arange(0, BLOCK)
            live = entry < total
            at = _place(entry, start, step, inner)
            mean = load(flat, at, live)
            sums += mean * mean + _noise(load(flat + size, at, live), live)
    tl.store(moments + k, tl.sum(sums))
