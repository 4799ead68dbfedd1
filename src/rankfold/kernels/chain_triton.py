"""Triton kernels for rows of a chain of three tables, ``a_b = L[l_b] · M[m_b] · R[r_b]``.

Shapes: ``L`` (·, JL, R1), ``M`` (·, R1, JM, R2), ``R`` (·, R2, JR), in any strides; a row has JL·JM·JR
entries. Many rows come sorted by ``m_b``. A program takes up to BLOCK of them with the same ``m``, and gathers their
``L`` and ``R``: what they share is then a matrix product with ``M[m]``, and its gradient is summed in registers before
it is added to memory. So are, on request, the gradients of a row of ``L`` or ``R`` that several of them ask for. Few
rows are not worth sorting: a program takes one of them.

Sizes in capitals are padded to powers of two where their name begins with P. ``M`` is taken in
pieces of PJM of its JM outputs. Without a right table R2 = JR = 1. All arithmetic is in float32; bfloat16
tables are converted as they are read.
"""

import triton
import triton.language as tl

from rankfold.kernels.gather_triton import load, place


@triton.jit
def _tile(
    index, order, group, count, m_stride, m_size, BLOCK: tl.constexpr, SORTED: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """The rows of a program, which of its slots have one, and the row of ``M`` that they share, or −1 if none has.

    Slots are places in the sorted order. That of a slot s with row m is program ``s // BLOCK + m``: neither falls from
    slot to slot, so that slots of one program are neighbours, and equal in both. Unsorted, a program has one row.
    """
    program = tl.program_id(0)
    if SORTED:
        low = tl.maximum(program - m_size + 1, 0) * BLOCK
        high = tl.minimum((program + 1) * BLOCK, count)
        while low < high:  # the first slot whose program is not before this one
            half = (low + high) // 2
            before = half // BLOCK + tl.load(group + half).to(tl.int32) < program
            low = tl.where(before, half + 1, low)
            high = tl.where(before, high, half)
        slot = low + tl.arange(0, BLOCK)
        m = tl.load(group + slot, mask=slot < count, other=0).to(tl.int32)
        live = (slot < count) & (slot // BLOCK + m == program)
        row = tl.load(order + slot, mask=live, other=0)
    else:
        row = (program + tl.arange(0, BLOCK)).to(tl.int64)  # like those of an order and of bags
        live = row == program
        m = place(index, row, live, m_stride, m_size, WIDE)
    return row, live, tl.max(tl.where(live, m, -1), axis=0)


@triton.jit
def _left(at, live, JL, R1, la, lj, lr, PJL: tl.constexpr, PR1: tl.constexpr):
    """Offsets and mask of ``L[l_b]``, (BLOCK, PJL · PR1)."""
    column = tl.arange(0, PJL * PR1)[None, :]
    j, r = column // PR1, column % PR1
    return at[:, None] * la + j * lj + r * lr, live[:, None] & (j < JL) & (r < R1)


@triton.jit
def _middle(m, start, R1, JM, R2, ma, mq, mj, mr, PR1: tl.constexpr, PJM: tl.constexpr, PR2: tl.constexpr):
    """Offsets and mask of a piece of ``M[m]`` as a matrix (PR1, PJM · PR2)."""
    q, column = tl.arange(0, PR1)[:, None], tl.arange(0, PJM * PR2)[None, :]
    j, r = start + column // PR2, column % PR2
    return m * ma + q * mq + j * mj + r * mr, (q < R1) & (j < JM) & (r < R2)


@triton.jit
def _right(at, live, R2, JR, ra, rq, rj, PR2: tl.constexpr, PJR: tl.constexpr):
    """Offsets and mask of ``R[r_b]``, (BLOCK, PR2 · PJR)."""
    column = tl.arange(0, PR2 * PJR)[None, :]
    q, j = column // PJR, column % PJR
    return at[:, None] * ra + q * rq + j * rj, live[:, None] & (q < R2) & (j < JR)


@triton.jit
def _entries(row, live, start, JL, JM, JR, PJL: tl.constexpr, PJM: tl.constexpr, PJR: tl.constexpr):
    """Offsets and mask of a piece of the rows, (BLOCK, PJL · PJM, PJR), in a matrix (·, JL · JM · JR)."""
    p, j = tl.arange(0, PJL * PJM)[None, :, None], tl.arange(0, PJR)[None, None, :]
    first, middle = p // PJM, start + p % PJM
    offset = row.to(tl.int64)[:, None, None] * (JL * JM * JR) + (first * JM + middle) * JR + j
    return offset, live[:, None, None] & (first < JL) & (middle < JM) & (j < JR)


@triton.jit
def _add(
    target, offset, mask, d, at, live, BLOCK: tl.constexpr, MERGE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Add gradients (BLOCK, ·) of rows of a table to memory; on request those of equal rows by the first of them.

    Rows that many ask for would otherwise have their additions wait for each other.
    """
    if MERGE:
        slot = tl.arange(0, BLOCK)
        same = (at[:, None] == at[None, :]) & live[:, None] & live[None, :]
        first = live & (tl.min(tl.where(same, slot[None, :], BLOCK), axis=1) == slot)
        if tl.sum((live & ~first).to(tl.int32), axis=0) > 0:
            d = tl.dot(same.to(tl.float32), d, input_precision=PRECISION)
        mask &= first[:, None]
    tl.atomic_add(target + offset, d, mask=mask, sem="relaxed")


@triton.jit(do_not_specialize=["count"])
def chain_forward(
    index, order, group, left, middle, right, bag, scale, out,
    count, l_stride, l_size, m_stride, m_size, r_stride, r_size,
    JL: tl.constexpr, R1, JM: tl.constexpr, R2, JR: tl.constexpr, la, lj, lr, ma, mq, mj, mr, ra, rq, rj,
    BLOCK: tl.constexpr, PJL: tl.constexpr, PR1: tl.constexpr, PJM: tl.constexpr, PR2: tl.constexpr,
    PJR: tl.constexpr, RIGHT: tl.constexpr, SORTED: tl.constexpr, BAGS: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``out[b] = a_b``, or with bags ``out[bag_b] += scale_b · a_b``."""
    row, live, m = _tile(index, order, group, count, m_stride, m_size, BLOCK, SORTED, WIDE)
    if m >= 0:
        l = place(index, row, live, l_stride, l_size, WIDE)  # noqa: E741
        l_offset, l_mask = _left(l, live, JL, R1, la, lj, lr, PJL, PR1)
        a = tl.reshape(load(left, l_offset, l_mask), (BLOCK * PJL, PR1))
        if RIGHT:
            r = place(index, row, live, r_stride, r_size, WIDE)
            r_offset, r_mask = _right(r, live, R2, JR, ra, rq, rj, PR2, PJR)
            c = tl.reshape(load(right, r_offset, r_mask), (BLOCK, PR2, PJR))
        if BAGS:
            row, weight = tl.load(bag + row, mask=live, other=0), load(scale, row, live)
        for start in range(0, JM, PJM):
            m_offset, m_mask = _middle(m, start, R1, JM, R2, ma, mq, mj, mr, PR1, PJM, PR2)
            w = load(middle, m_offset, m_mask)
            # X = L M: (BLOCK · PJL, PR1) × (PR1, PJM · PR2)
            x = tl.dot(a, w, input_precision=PRECISION)
            y = tl.reshape(x, (BLOCK, PJL * PJM, PR2))
            if RIGHT:
                # Y_b = X_b R_b: (PJL · PJM, PR2) × (PR2, PJR) for every row
                if PJR == 1:
                    y = tl.sum(y * tl.permute(c, (0, 2, 1)), axis=2)[:, :, None]
                else:
                    y = tl.dot(y, c, input_precision=PRECISION)
            offset, mask = _entries(row, live, start, JL, JM, JR, PJL, PJM, PJR)
            if BAGS:
                tl.atomic_add(out + offset, y * weight[:, None, None], mask=mask, sem="relaxed")
            else:
                tl.store(out + offset, y.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count"])
def chain_backward(
    index, order, group, left, middle, right, bag, scale, grad, d_left, d_middle, d_right,
    count, l_copies, l_entries, m_copies, m_entries, r_copies, r_entries,
    l_stride, l_size, m_stride, m_size, r_stride, r_size,
    JL: tl.constexpr, R1, JM: tl.constexpr, R2, JR: tl.constexpr, la, lj, lr, ma, mq, mj, mr, ra, rq, rj,
    BLOCK: tl.constexpr, PJL: tl.constexpr, PR1: tl.constexpr, PJM: tl.constexpr, PR2: tl.constexpr,
    PJR: tl.constexpr, RIGHT: tl.constexpr, SORTED: tl.constexpr, BAGS: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, MERGE_LEFT: tl.constexpr, MERGE_RIGHT: tl.constexpr,
):  # fmt: skip
    """Gradients of the tables, added to float32 ``d_left``, ``d_middle``, ``d_right``, in the tables' strides.

    There may be several copies of each; a program adds to one of them.
    """
    program = tl.program_id(0)
    d_left += (program % l_copies) * l_entries
    d_middle += (program % m_copies) * m_entries
    d_right += (program % r_copies) * r_entries
    row, live, m = _tile(index, order, group, count, m_stride, m_size, BLOCK, SORTED, WIDE)
    if m >= 0:
        l = place(index, row, live, l_stride, l_size, WIDE)  # noqa: E741
        l_offset, l_mask = _left(l, live, JL, R1, la, lj, lr, PJL, PR1)
        a = tl.reshape(load(left, l_offset, l_mask), (BLOCK * PJL, PR1))
        da = tl.zeros((BLOCK * PJL, PR1), tl.float32)
        if RIGHT:
            r = place(index, row, live, r_stride, r_size, WIDE)
            r_offset, r_mask = _right(r, live, R2, JR, ra, rq, rj, PR2, PJR)
            c = tl.reshape(load(right, r_offset, r_mask), (BLOCK, PR2, PJR))
            dc = tl.zeros((BLOCK, PR2, PJR), tl.float32)
        if BAGS:
            row, weight = tl.load(bag + row, mask=live, other=0), load(scale, row, live)
        for start in range(0, JM, PJM):
            # slots of other programs have dY = 0, and so add nothing below
            offset, mask = _entries(row, live, start, JL, JM, JR, PJL, PJM, PJR)
            dy = load(grad, offset, mask)
            if BAGS:
                dy *= weight[:, None, None]
            m_offset, m_mask = _middle(m, start, R1, JM, R2, ma, mq, mj, mr, PR1, PJM, PR2)
            w = load(middle, m_offset, m_mask)
            dx = dy
            if RIGHT:
                x = tl.reshape(tl.dot(a, w, input_precision=PRECISION), (BLOCK, PJL * PJM, PR2))
                # dX_b = dY_b R_bᵀ and dR_b = X_bᵀ dY_b
                if PJR == 1:
                    dx = dy * tl.permute(c, (0, 2, 1))
                    dc += tl.sum(x * dy, axis=1)[:, :, None]
                else:
                    dx = tl.dot(dy, tl.permute(c, (0, 2, 1)), input_precision=PRECISION)
                    dc += tl.dot(tl.permute(x, (0, 2, 1)), dy, input_precision=PRECISION)
            dx = tl.reshape(dx, (BLOCK * PJL, PJM * PR2))
            # dL = dX Mᵀ and dM = Lᵀ dX
            da += tl.dot(dx, tl.trans(w), input_precision=PRECISION)
            dw = tl.dot(tl.trans(a), dx, input_precision=PRECISION)
            tl.atomic_add(d_middle + m_offset, dw, mask=m_mask, sem="relaxed")
        da = tl.reshape(da, (BLOCK, PJL * PR1))
        _add(d_left, l_offset, l_mask, da, l, live, BLOCK, MERGE_LEFT, PRECISION)
        if RIGHT:
            dc = tl.reshape(dc, (BLOCK, PR2 * PJR))
            _add(d_right, r_offset, r_mask, dc, r, live, BLOCK, MERGE_RIGHT, PRECISION)
