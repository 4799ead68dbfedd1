"""What is measured of a classifier once training is over: quality, calibration, and knowing the unfamiliar."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.bayesian_tensor import tensors_of
from rankfold.experiments.batch_norm import batches_of_draws
from rankfold.experiments.task import Data, Examples
from rankfold.predictive import sampled
from rankfold.uncertainty import calibration_bins, ood_auroc, predictive_statistics, score

NUM_SAMPLES = 32
NUM_DRAWS_OF_ONE = 200  # of the hardest example, enough for a density


def classification(model: nn.Module, data: Data, seed: int, batch_size: int = 1000) -> dict[str, Any]:
    """Scores of the posterior mean; of Monte Carlo predictions too, where there is a posterior."""
    torch.manual_seed(seed)
    metrics = {"posterior_mean": _scores(model, data, 0, batch_size)}
    if any(tensor.inference == "bayes" for tensor in tensors_of(model).values()):
        metrics["monte_carlo"] = {**_scores(model, data, NUM_SAMPLES, batch_size), "samples": NUM_SAMPLES}
    return metrics


def _scores(model: nn.Module, data: Data, samples: int, batch_size: int) -> dict[str, Any]:
    """Scores on the evaluation examples, and AUROC of two measures of uncertainty against unfamiliar ones."""
    bn_batches = batches_of_draws(model, data) if samples else None
    options: dict[str, Any] = {"samples": samples, "batch_size": batch_size, "bn_batches": bn_batches}
    inside = predictive_statistics(model, *data.evaluation.inputs, **options)
    scores: dict[str, Any] = asdict(score(inside.probabilities, data.evaluation.labels))
    scores["calibration"] = asdict(calibration_bins(inside.probabilities, data.evaluation.labels))
    scores["auroc_entropy"] = scores["auroc_mutual_information"] = None
    if data.unfamiliar is not None:
        outside = predictive_statistics(model, *data.unfamiliar, **options)
        scores["auroc_entropy"] = ood_auroc(inside.entropy, outside.entropy)
        if samples:
            scores["auroc_mutual_information"] = ood_auroc(inside.mutual_information, outside.mutual_information)
    return scores


@torch.no_grad()
def hard_example(model: nn.Module, examples: Examples) -> dict[str, Any]:
    """The example about which samples of the weights disagree most, with what they say of it."""
    predictions = predictive_statistics(model, *examples.inputs, samples=NUM_SAMPLES)
    index = int(predictions.mutual_information.argmax())
    one = tuple(values[index : index + 1] for values in examples.inputs)
    with sampled(model):
        draws = torch.cat([model(*one).softmax(1) for _ in range(NUM_DRAWS_OF_ONE)])  # (draws, classes)
    return {
        "index": index,
        "label": int(examples.labels[index]),
        "mean": _rounded(draws.mean(0)),
        "std": _rounded(draws.std(0)),
        "draws": _rounded(draws),
    }


def _rounded(values: Tensor) -> Any:
    """Lists with four digits: what a figure shows."""
    return values.double().round(decimals=4).tolist()
