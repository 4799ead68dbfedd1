"""What tells data from others: a run goes on with the data it began with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import torch
from torch import Tensor

from rankfold.jobs.preparation import Learned, Preparation

_DIGITS = 16  # of each half
# of the data, but nothing that is trained on
_UNUSED = ("left_out", "ids")


def fingerprint(learned: Learned) -> str:
    """One half of all inputs and labels and of the division, the other of what was learned to prepare them.

    Inputs are standardised: in another unit they are the same, and only their mean and scale tell.
    """
    return _of_examples(learned) + _of_preparation(learned.preparation)


def is_same(kept: str, learned: Learned) -> bool:
    """Whether ``kept`` is the fingerprint of these data; older runs kept the half of the examples alone."""
    found = fingerprint(learned)
    return kept in (found, found[:_DIGITS])


def _of_examples(learned: Learned) -> str:
    digest = hashlib.sha256()
    for tensor in _tensors(learned):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()[:_DIGITS]


def _of_preparation(preparation: Preparation) -> str:
    used = {key: value for key, value in preparation.as_dict().items() if key not in _UNUSED}
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def _tensors(learned: Learned) -> Iterator[Tensor]:
    assert learned.examples.labels is not None
    yield from learned.examples.inputs
    yield learned.examples.labels
    yield torch.from_numpy(learned.validation)
