"""Data sets that the demonstrations and experiments train on."""
