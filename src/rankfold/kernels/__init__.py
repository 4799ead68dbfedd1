"""Rows of embedding tables that exist only as factors, by Triton kernels or plain torch."""

from rankfold.kernels.dispatch import pooled_rows, rows

__all__ = ["pooled_rows", "rows"]
