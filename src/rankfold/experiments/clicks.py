"""Scores of click predictions: accuracy, AUC and log loss, and every example's score for later comparisons.

AUC comes from torchmetrics: pip install 'rankfold[experiments]'.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.bayesian_tensor import tensors_of
from rankfold.experiments.bootstrap import AUCDifference, paired_bootstrap
from rankfold.experiments.task import Data, Examples
from rankfold.predictive import predict

NUM_SAMPLES = 16
# Scores are kept of at most this many examples, spread evenly: 2.7 bytes of a result file each.
MOST_SCORES = 50_000
_BATCH = 8192
_ROUNDING = 1e-6  # may lift an average above 1


def click_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of ``−log p(label)`` in nats, for logits (B,) of a click and labels 0 or 1 of any type."""
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


def evaluate(model: nn.Module, data: Data, seed: int) -> dict[str, Any]:
    """Scores of the posterior mean; of Monte Carlo predictions too, where there is a posterior."""
    labels = data.evaluation.labels.cpu()
    probabilities = click_probabilities(model, data.evaluation)
    metrics: dict[str, Any] = {
        "posterior_mean": click_scores(probabilities, labels),
        "scores": pack_scores(probabilities, labels),
    }
    if any(tensor.inference == "bayes" for tensor in tensors_of(model).values()):
        averaged = click_probabilities(model, data.evaluation, samples=NUM_SAMPLES, seed=seed)
        metrics["monte_carlo"] = {**click_scores(averaged, labels), "samples": NUM_SAMPLES}
    return metrics


def click_probabilities(model: nn.Module, examples: Examples, *, samples: int = 0, seed: int = 0) -> Tensor:
    """The probability of a click, (N,), in float64 on the CPU: of the posterior mean, or averaged over samples."""
    parts = [
        predict(model, *batch, samples=samples, transform=torch.sigmoid, seed=seed)[0].double().cpu()
        for batch in zip(*(torch.split(x, _BATCH) for x in examples.inputs), strict=True)
    ]
    return torch.cat(parts)


def click_scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, AUC and log loss of probabilities (N,) for labels (N,), 0 or 1.

    >>> click_scores(torch.tensor([0.2, 0.4, 0.6]), torch.tensor([0, 1, 1]))["auc"]
    1.0
    """
    from torchmetrics.functional.classification import binary_auroc

    _check_probabilities(probabilities)
    # float32 rounds to 0 and 1, where a wrong label would cost infinitely much
    clipped = probabilities.double().clamp(1e-7, 1 - 1e-7)
    return {
        "accuracy": float(((probabilities > 0.5) == labels.bool()).double().mean()),
        "auc": float(binary_auroc(probabilities.double(), labels.long())),
        "nll_nats": float(F.binary_cross_entropy(clipped, labels.double())),
    }


def _check_probabilities(values: Tensor) -> None:
    """Refuse logits, which would give scores, too."""
    outside = values[(values < 0) | (values > 1 + _ROUNDING)]
    if len(outside):
        raise ValueError(f"probabilities must lie in [0, 1], got {float(outside[0]):g}; of logits give their sigmoid")


# Scores in result files -------------------------------------------------------------------------------


def pack_scores(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """Logits in half precision and labels as bits, both as text; of evenly spread examples if there are many."""
    step = -(-len(labels) // MOST_SCORES)
    logits = torch.logit(probabilities[::step].double(), eps=1e-6).numpy().astype("<f2")
    bits = np.packbits(labels[::step].bool().numpy())
    return {
        "count": len(logits),
        "step": step,
        "logits": _to_text(logits.tobytes()),
        "labels": _to_text(bits.tobytes()),
    }


def unpack_scores(packed: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Logits (N,) and labels (N,)."""
    logits = np.frombuffer(base64.b64decode(packed["logits"]), "<f2").astype(float)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(packed["labels"]), np.uint8))
    return logits, bits[: packed["count"]].astype(bool)


def compare(results: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> AUCDifference:
    """AUC of one row less that of another, from the result files of their seeds."""
    first, second = ([unpack_scores(r["metrics"]["scores"]) for r in row] for row in (results, others))
    labels = first[0][1]
    if not all(np.array_equal(labels, other) for _, other in (*first, *second)):
        raise ValueError("the results are of different examples, so they cannot be compared one by one")
    return paired_bootstrap(np.stack([s for s, _ in first]), np.stack([s for s, _ in second]), labels)


def _to_text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
