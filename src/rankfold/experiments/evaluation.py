"""What is measured once training is over: quality, calibration, and knowing the unfamiliar."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.bayesian_tensor import tensors_of
from rankfold.experiments.mnist import brightness
from rankfold.experiments.task import Data, Examples
from rankfold.predictive import sampled
from rankfold.uncertainty import Predictions, ood_auroc, predictive_statistics, score

NUM_SAMPLES = 32
NUM_DRAWS_OF_ONE = 200  # of the hardest image, enough for a density


def evaluate(model: nn.Module, data: Data, seed: int) -> dict[str, Any]:
    """Scores of the posterior mean; of Monte Carlo predictions too, where there is a posterior."""
    torch.manual_seed(seed)
    metrics = {"posterior_mean": _scores(model, data, samples=0)[0]}
    if not any(tensor.inference == "bayes" for tensor in tensors_of(model).values()):
        return metrics
    scores, predictions = _scores(model, data, samples=NUM_SAMPLES)
    return {
        **metrics,
        "monte_carlo": {**scores, "samples": NUM_SAMPLES},
        "hard_image": _hard_image(model, data.evaluation, predictions),
    }


def _scores(model: nn.Module, data: Data, samples: int) -> tuple[dict[str, Any], Predictions]:
    """Scores on the evaluation images, and AUROC of two measures of uncertainty against unfamiliar ones."""
    inside = predictive_statistics(model, data.evaluation.images, samples=samples)
    scores: dict[str, Any] = asdict(score(inside.probabilities, data.evaluation.labels))
    scores["auroc_entropy"] = scores["auroc_mutual_information"] = None
    if data.unfamiliar is not None:
        outside = predictive_statistics(model, data.unfamiliar, samples=samples)
        scores["auroc_entropy"] = ood_auroc(inside.entropy, outside.entropy)
        if samples:
            scores["auroc_mutual_information"] = ood_auroc(inside.mutual_information, outside.mutual_information)
    return scores, inside


@torch.no_grad()
def _hard_image(model: nn.Module, examples: Examples, predictions: Predictions) -> dict[str, Any]:
    """The image about which samples of the weights disagree most, with what they say of it."""
    index = int(predictions.mutual_information.argmax())
    image = examples.images[index]
    with sampled(model):
        draws = torch.cat([model(image[None]).softmax(1) for _ in range(NUM_DRAWS_OF_ONE)])  # (draws, classes)
    return {
        "index": index,
        "label": int(examples.labels[index]),
        "pixels": brightness(image),
        "mean": _rounded(draws.mean(0)),
        "std": _rounded(draws.std(0)),
        "draws": _rounded(draws),
    }


def _rounded(values: Tensor) -> Any:
    """Lists with four digits: what a figure shows."""
    if values.dim() == 0:
        return round(float(values), 4)
    return [_rounded(value) for value in values.cpu()]
