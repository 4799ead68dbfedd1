"""The networks of jobs with their layers as factors: made, or only planned."""

from __future__ import annotations

import torch
from torch import nn

from rankfold.config import TensorConfig
from rankfold.experiments.spec import FormatName, Spec
from rankfold.experiments.task import CONFIGS, PRIORS
from rankfold.jobs.preparation import Network
from rankfold.surgery import Plan, plan, tensorize_


def build(network: Network, spec: Spec) -> nn.Module:
    """The network with its layers as factors, at the ranks to start from."""
    torch.manual_seed(spec.seed)
    with torch.device("meta" if network.too_large else "cpu"):
        dense = network.make(**network.options)
    return tensorize_(dense, config_of(network, spec), network.chosen, device="cpu" if network.too_large else None)


def planned(network: Network, spec: Spec) -> Plan:
    """What :func:`build` would do; nothing is allocated."""
    return _plan(network, config_of(network, spec))


def makes_smaller(network: Network, format: FormatName, rank: int) -> bool:
    """Whether any layer would become factors in this format, with this rank to start from."""
    return any(row.action == "tensorize" for row in _plan(network, CONFIGS[format](rank)).rows)


def _plan(network: Network, config: TensorConfig) -> Plan:
    with torch.device("meta"):
        dense = network.make(**network.options)
    return plan(dense, config, network.chosen)


def config_of(network: Network, spec: Spec) -> TensorConfig:
    """Format, rank, prior and scale of the factors."""
    assert spec.format is not None
    assert spec.max_rank is not None
    return CONFIGS[spec.format](spec.max_rank, prior=PRIORS[spec.prior], init_std=network.init_std)
