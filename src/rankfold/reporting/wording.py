"""Numbers and names as a person writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = {"cp": "CP", "tucker": "Tucker", "tt": "tensor train", "ttm": "tensor-train matrix"}
METHODS = {
    "dense": "dense",
    "fr": "fixed rank",
    "tc-mr": "dense, then compressed at the maximum rank",
    "tc-or": "dense, then compressed at the ranks found by another run",
    "ard": "finds its own ranks",
}
DATA_SETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "imdb": "IMDB", "dlrm": "DLRM"}
PREDICTIONS = {"posterior_mean": "posterior mean", "monte_carlo": "samples of the posterior", "baseline": "baseline"}
# Key of a score, its name, what it says, and whether it is a share.
SCORES = {
    "accuracy": ("accuracy", "share of right answers", True),
    "nll_nats": ("NLL", "nats per example; lower is better", False),
    "rmse": ("RMSE", "root mean squared error; lower is better", False),
    "mae": ("MAE", "mean absolute error; lower is better", False),
    "r2": ("R²", "share of the variance explained", False),
    "within_90_percent": ("within the 90 % interval", "share of the examples; 90 % is right", True),
    "auc": ("AUC", "area under the ROC curve", False),
    "brier": ("Brier score", "squared error of the probabilities; lower is better", False),
    "ece": ("calibration error", "confidence against accuracy, 15 bins; lower is better", True),
    "auroc_entropy": ("unfamiliar by entropy", "AUROC against examples of another kind; 0.5 is chance", False),
    "auroc_mutual_information": ("unfamiliar by disagreement", "AUROC of the mutual information", False),
}


def count(value: float) -> str:
    """``407,050``."""
    return f"{value:,.0f}"


def number(value: float) -> str:
    """Four significant digits; powers of ten for what is very small or large.

    >>> number(0.0473323), number(72733.7), number(3e-7), number(0)
    ('0.04733', '72,734', '3.0e−07', '0')
    """
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "not a number")
    size = abs(value)
    if size and not 1e-4 <= size < 1e9:
        return f"{value:.1e}".replace("-", "−")
    text = f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"
    return text.replace("-", "−")


def percent(share: float) -> str:
    """``98.52 %``, with a space that does not break."""
    return f"{100 * share:.2f} %"


def points(difference: float) -> str:
    """A difference of shares in percentage points, with its sign.

    >>> points(0.0024), points(-0.01)
    ('+0.24 points', '−1.00 points')
    """
    return f"{100 * difference:+.2f} points".replace("-", "−")


def times(ratio: float) -> str:
    """How many times: ``100×``, ``3.4×``.

    >>> times(100.01), times(3.41)
    ('100×', '3.4×')
    """
    return f"{ratio:,.0f}×" if ratio >= 20 else f"{ratio:.1f}×"


def score_name(key: str) -> str:
    """What a score is called."""
    return SCORES[key][0] if key in SCORES else key.replace("_", " ")


def score(key: str, value: float) -> str:
    """A score as its kind is written."""
    return percent(value) if key in SCORES and SCORES[key][2] else number(value)


def one_answer(baseline: Mapping[str, Any]) -> str:
    """What is always said by a model that ignores its inputs: a number, or probabilities and so a class.

    >>> one_answer({"answer": "cat", "accuracy": 0.5, "nll_nats": 0.7}), one_answer({"answer": 1.5, "rmse": 2.0})
    ('class shares, so always cat', 'always 1.5')
    """
    answer = baseline["answer"]
    always = f"always {number(answer) if isinstance(answer, float) else answer}"
    return f"class shares, so {always}" if "nll_nats" in baseline else always  # runs of older versions have no NLL


def duration(seconds: float) -> str:
    """A time in units that fit it.

    >>> duration(0.0015), duration(70.7), duration(3700)
    ('1.5 ms', '1 min 11 s', '1 h 2 min')
    """
    if seconds < 0.9995:  # rounded first: never 1000 ms, nor 60 s or 60 min
        return f"{1000 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    unit, names = (60, "h min") if round(seconds) >= 3600 else (1, "min s")
    large, small = divmod(round(seconds / unit), 60)
    first, second = names.split()
    return f"{large} {first} {small} {second}"


def modes(dims: Sequence[int]) -> str:
    """``4·7·4·7``."""
    return "·".join(map(str, dims))


def ranks_change(before: Sequence[int], after: Sequence[int]) -> str:
    """All ranks of a layer before and after: ``20·20·20 → 6·6·5``, or once where nothing changed."""
    return modes(after) if list(before) == list(after) else f"{modes(before)} → {modes(after)}"
