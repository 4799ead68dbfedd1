"""The figures of the paper, drawn from our own result files."""
