"""Timing layers side by side: ``torch.nn``, tensorly-torch and rankfold."""
