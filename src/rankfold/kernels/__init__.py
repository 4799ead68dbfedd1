"""Rows of embedding tables that exist only as factors, by Triton kernels or plain torch."""

from rankfold.kernels.dispatch import can_pool, pooled_rows, rows

__all__ = ["can_pool", "pooled_rows", "rows"]
