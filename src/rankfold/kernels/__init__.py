"""Rows of embedding tables that exist only as factors; samples, KL and half step 2; by Triton kernels or plain torch.

The factors of a table are contracted into a few small tables (:mod:`~rankfold.kernels.layouts`), of which a row
takes one entry each. Two families of kernels turn these entries into rows, or bags of rows, and rows' gradients
into gradients of the tables: chains of matrices for TTM, TT and Tucker, products with one matrix for CP. The table
itself, and what lies between factors and rows, never reaches memory; :mod:`~rankfold.kernels.reference` is the
same in plain torch, and :mod:`~rankfold.kernels.dispatch` chooses.

What must move, for N rows of J numbers in float32: 4NJ bytes out, in backward 4NJ bytes of gradient in, and the
index. With N = 65,536 and J = 128 that is 67 MB, 16 µs on an H200. The tables (1 MB in TTM at rank 16, 7 MB in
Tucker at rank 20) stay in its cache. There, every TTM row gathers JL·R1 + R2·JR = 192 numbers, forward and
backward, and adds as many to gradients, 50 MB each time. The middle table, 1,024 numbers a row, is read once for
all rows of a tile that share it: rows are sorted by it first. Up to a few thousand rows sorting takes longer than it
saves, and a tile has one row.

:mod:`~rankfold.kernels.slices` is apart from this: the samples of a layer, the KL of all factors of a model, or its
half step 2, in one kernel.
"""

from rankfold.kernels.dispatch import can_pool, pooled_rows, rows, rows_before_weight

__all__ = ["can_pool", "pooled_rows", "rows", "rows_before_weight"]
