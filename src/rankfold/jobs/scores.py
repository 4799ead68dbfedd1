"""What a trained model is worth on examples it has not seen."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.experiments.clicks import click_scores
from rankfold.experiments.task import Data, Examples
from rankfold.jobs.objective import Objective
from rankfold.jobs.targets import Classes, Quantity
from rankfold.models.mlp import TableRegressor
from rankfold.predictive import sampled
from rankfold.uncertainty import calibration_bins, score

NUM_SAMPLES = 32
# 90 % of a normal distribution lie within so many standard deviations of its mean.
_WITHIN_90 = 1.6448536269514722


def evaluate(model: nn.Module, objective: Objective, data: Data, seed: int) -> dict[str, Any]:
    """Scores of the posterior mean, of Monte Carlo predictions, and of an answer that ignores the inputs."""
    if isinstance(objective.target, Quantity):
        scores = _of_quantity(model, objective, objective.target, data.evaluation, seed)
        return {**scores, "baseline": _mean_answer(objective.target, data.evaluation)}
    metrics = {}
    for name, samples in (("posterior_mean", 0), ("monte_carlo", NUM_SAMPLES)):
        probabilities, _ = objective.predict(model, data.evaluation.inputs, samples, seed)
        metrics[name] = class_scores(probabilities, data.evaluation.labels.cpu().long(), objective.is_click)
    metrics["monte_carlo"]["samples"] = NUM_SAMPLES
    return {**metrics, "baseline": _shares_as_answer(objective.target, data, objective.is_click)}


# Classes ----------------------------------------------------------------------------------------------


def class_scores(probabilities: Tensor, labels: Tensor, is_click: bool) -> dict[str, Any]:
    """Of probabilities (N, C) for labels (N,); the AUC too of clicks, if some are and some are not."""
    has_auc = is_click and len(labels.unique()) == 2
    more = {"auc": click_scores(probabilities[:, 1], labels)["auc"]} if has_auc else {}
    bins = asdict(calibration_bins(probabilities, labels))
    return {**asdict(score(probabilities, labels)), **more, "calibration": bins}


def _shares_as_answer(classes: Classes, data: Data, is_click: bool) -> dict[str, Any]:
    """Scores of always giving the shares that the classes have in training, so always the most frequent class."""
    counts = data.train.labels.long().bincount(minlength=len(classes.names)).double().cpu()
    labels = data.evaluation.labels.cpu().long()
    shares = (counts / counts.sum()).expand(len(labels), -1)
    found = class_scores(shares, labels, is_click)
    answer: dict[str, Any] = {"answer": classes.names[int(counts.argmax())]}
    return answer | {key: found[key] for key in ("accuracy", "nll_nats", "auc") if key in found}


# A quantity -------------------------------------------------------------------------------------------


def _of_quantity(
    model: nn.Module, objective: Objective, target: Quantity, examples: Examples, seed: int
) -> dict[str, Any]:
    assert isinstance(model, TableRegressor)
    noise, labels = model.noise_std(*examples.inputs).detach().double(), examples.labels.cpu().double()
    mean, _ = objective.predict(model, examples.inputs, 0, seed)
    average, spread = objective.predict(model, examples.inputs, NUM_SAMPLES, seed)
    learned = {"noise_std": target.std * float(model.likelihood.std.detach())}
    inside = (labels - average).abs() <= _WITHIN_90 * (spread.square() + noise.cpu().square()).sqrt()
    return {
        "posterior_mean": {
            "nll_nats": objective.nats_of_unit + _normal_nll(labels, mean, noise.cpu()),
            **errors(mean, labels, target),
            **learned,
        },
        "monte_carlo": {
            "nll_nats": objective.nats_of_unit + _sampled_nll(model, examples, noise, seed),
            **errors(average, labels, target),
            **learned,
            "within_90_percent": float(inside.double().mean()),
            "samples": NUM_SAMPLES,
        },
    }


def errors(predicted: Tensor, labels: Tensor, target: Quantity) -> dict[str, float]:
    """Root mean squared and mean absolute error in the target's unit, and R², of standardised values (N,).

    Labels that are all alike, or but one, have no R².
    """
    squares = (predicted - labels).square().mean()
    found = {
        "rmse": target.std * float(squares.sqrt()),
        "mae": target.std * float((predicted - labels).abs().mean()),
    }
    if bool((labels == labels[0]).all()):
        return found
    # R² = 1 − Σ (y − f)² / Σ (y − ȳ)²
    return {**found, "r2": float(1.0 - squares / (labels - labels.mean()).square().mean())}


def _normal_nll(labels: Tensor, mean: Tensor, noise: Tensor) -> float:
    return float(-torch.distributions.Normal(mean, noise).log_prob(labels).mean())


@torch.no_grad()
def _sampled_nll(model: nn.Module, examples: Examples, noise: Tensor, seed: int) -> float:
    """``−log 1/S Σ_s N(y | f_s, σ²)``, the mean over examples, in nats."""
    torch.manual_seed(seed)
    labels = examples.labels.double()
    with sampled(model):
        logs = [
            torch.distributions.Normal(model(*examples.inputs).double(), noise).log_prob(labels)
            for _ in range(NUM_SAMPLES)
        ]
    return float(-(torch.stack(logs).logsumexp(0) - math.log(NUM_SAMPLES)).mean())


def _mean_answer(target: Quantity, examples: Examples) -> dict[str, Any]:
    labels = examples.labels.cpu().double()
    return {"answer": target.mean, **errors(torch.zeros_like(labels), labels, target)}
