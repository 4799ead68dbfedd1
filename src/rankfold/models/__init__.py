"""The dense networks of the experiments, before any of their layers is tensorized."""
