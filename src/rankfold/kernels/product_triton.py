"""Triton kernels for rows of a CP table, ``a_b = (U¹[i_b] ∘ U²[j_b] ∘ U³[k_b]) W`` with ``W`` (R, J).

Forward: a program takes BLOCK rows and PJ columns, and goes through the ranks in pieces of PR: the products
of factor rows live in registers only. Backward: a program keeps a piece (PR, PJ) of ``W`` and of its gradient,
and goes through its share of the rows; gradients of factor rows are added atomically. All arithmetic is in
float32; bfloat16 tables are converted as they are read.
"""

import triton
import triton.language as tl

from rankfold.kernels.gather_triton import load, place


@triton.jit
def _factor(at, live, rank, R, fa, fr):
    """Offsets and mask of rows ``U[at]``, (BLOCK, PR)."""
    return at[:, None] * fa + rank[None, :] * fr, live[:, None] & (rank < R)[None, :]


@triton.jit(do_not_specialize=["count"])
def product_forward(
    index, first, second, third, weight, bag, scale, out,
    count, a_stride, a_size, b_stride, b_size, c_stride, c_size,
    R, J: tl.constexpr, fa, fr, sa, sr, ta, tr, wr, wj,
    BLOCK: tl.constexpr, PR: tl.constexpr, PJ: tl.constexpr, ORDER: tl.constexpr, BAGS: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``out[b] = a_b``, or with bags ``out[bag_b] += scale_b · a_b``."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * PJ + tl.arange(0, PJ)
    live = row < count
    a_at = place(index, row, live, a_stride, a_size, WIDE)
    if ORDER > 1:
        b_at = place(index, row, live, b_stride, b_size, WIDE)
    if ORDER > 2:
        c_at = place(index, row, live, c_stride, c_size, WIDE)
    y = tl.zeros((BLOCK, PJ), tl.float32)
    for start in range(0, R, PR):
        rank = start + tl.arange(0, PR)
        offset, mask = _factor(a_at, live, rank, R, fa, fr)
        v = load(first, offset, mask)
        if ORDER > 1:
            offset, mask = _factor(b_at, live, rank, R, sa, sr)
            v *= load(second, offset, mask)
        if ORDER > 2:
            offset, mask = _factor(c_at, live, rank, R, ta, tr)
            v *= load(third, offset, mask)
        offset = rank[:, None] * wr + column[None, :] * wj
        w = load(weight, offset, (rank < R)[:, None] & (column < J)[None, :])
        # Y = V W: (BLOCK, PR) × (PR, PJ)
        y = tl.dot(v, w, y, input_precision=PRECISION)
    mask = live[:, None] & (column < J)[None, :]
    if BAGS:
        target, factor = tl.load(bag + row, mask=live, other=0), load(scale, row, live)
        offset = target.to(tl.int64)[:, None] * J + column[None, :]
        tl.atomic_add(out + offset, y * factor[:, None], mask=mask, sem="relaxed")
    else:
        offset = row.to(tl.int64)[:, None] * J + column[None, :]
        tl.store(out + offset, y.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count", "share"])
def product_backward(
    index, first, second, third, weight, bag, scale, grad, d_first, d_second, d_third, d_weight,
    count, share, a_stride, a_size, b_stride, b_size, c_stride, c_size,
    R, J: tl.constexpr, fa, fr, sa, sr, ta, tr, wr, wj,
    BLOCK: tl.constexpr, PR: tl.constexpr, PJ: tl.constexpr, ORDER: tl.constexpr, BAGS: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of factors and ``W``, added to float32 tensors in their strides, from ``share`` rows."""
    rank = tl.program_id(0) * PR + tl.arange(0, PR)
    column = tl.program_id(1) * PJ + tl.arange(0, PJ)
    w_offset = rank[:, None] * wr + column[None, :] * wj
    w_mask = (rank < R)[:, None] & (column < J)[None, :]
    w = load(weight, w_offset, w_mask)
    dw = tl.zeros((PR, PJ), tl.float32)
    begin = tl.program_id(2) * share
    end = tl.minimum(begin + share, count)
    for start in range(begin, end, BLOCK):
        row = start + tl.arange(0, BLOCK)
        live = row < end
        if BAGS:
            target, factor = tl.load(bag + row, mask=live, other=0), load(scale, row, live)
        else:
            target = row
        offset = target.to(tl.int64)[:, None] * J + column[None, :]
        dy = load(grad, offset, live[:, None] & (column < J)[None, :])
        if BAGS:
            dy *= factor[:, None]
        # dV = dY Wᵀ: (BLOCK, PJ) × (PJ, PR)
        dv = tl.dot(dy, tl.trans(w), input_precision=PRECISION)
        a_at = place(index, row, live, a_stride, a_size, WIDE)
        a_offset, a_mask = _factor(a_at, live, rank, R, fa, fr)
        v = load(first, a_offset, a_mask)
        if ORDER == 1:
            tl.atomic_add(d_first + a_offset, dv, mask=a_mask, sem="relaxed")
        if ORDER > 1:
            b_at = place(index, row, live, b_stride, b_size, WIDE)
            b_offset, b_mask = _factor(b_at, live, rank, R, sa, sr)
            u = load(second, b_offset, b_mask)
            if ORDER > 2:
                c_at = place(index, row, live, c_stride, c_size, WIDE)
                c_offset, c_mask = _factor(c_at, live, rank, R, ta, tr)
                t = load(third, c_offset, c_mask)
                # the gradient of one factor is dV times the other two
                tl.atomic_add(d_third + c_offset, dv * (v * u), mask=c_mask, sem="relaxed")
                dv *= t
            tl.atomic_add(d_first + a_offset, dv * u, mask=a_mask, sem="relaxed")
            tl.atomic_add(d_second + b_offset, dv * v, mask=b_mask, sem="relaxed")
            v *= u
            if ORDER > 2:
                v *= t
        # dW = Vᵀ dY: (PR, BLOCK) × (BLOCK, PJ)
        dw = tl.dot(tl.trans(v), dy, dw, input_precision=PRECISION)
    tl.atomic_add(d_weight + w_offset, dw, mask=w_mask, sem="relaxed")
