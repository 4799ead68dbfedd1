"""The experiments of the paper: files of settings in, one JSON per run out."""
