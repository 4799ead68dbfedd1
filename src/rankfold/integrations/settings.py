"""What the callbacks of all frameworks share: their options, and what they log."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Sequence, Sized
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from rankfold.counts import accounting
from rankfold.rank_determination import RankDetermination
from rankfold.shapes import check_positive
from rankfold.tensorized_weights import weight_name

# Those of a RankDetermination besides the model, the optimizer, num_data and total_steps.
OPTIONS = tuple(inspect.signature(RankDetermination).parameters)[4:]

Readings = dict[str, float]


@final
class Settings:
    """The options of a :class:`~rankfold.RankDetermination` that is made once training begins.

    Args:
        num_data: as there; left out, the framework is asked.
        total_steps: as there; left out, the framework is asked.
        options: all others, by name; a misspelt one is refused at once.
    """

    def __init__(self, num_data: int | None, total_steps: int | None, options: dict[str, Any]) -> None:
        known = ("num_data", "total_steps", *OPTIONS)
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"options are {', '.join(known)}"
                raise TypeError(f"RankDeterminationCallback has no option {name!r}; {hint}")
        given = {"num_data": num_data, "total_steps": total_steps}
        check_positive(**{name: number for name, number in given.items() if number is not None})
        self.num_data = num_data
        self.total_steps = total_steps
        self.options = options

    def make(
        self, model: nn.Module, optimizers: Sequence[Optimizer], num_data: int | None, total_steps: float | None
    ) -> RankDetermination:
        """``num_data`` and ``total_steps`` are what the framework knows; the user's own come first."""
        num_data = num_data if self.num_data is None else self.num_data
        total_steps = total_steps if self.total_steps is None else self.total_steps
        if num_data is None:
            raise ValueError(
                "the size of the training data is unknown; give num_data=, the number of terms that the mean NLL "
                "averages over one epoch: examples for a classifier, tokens for a language model"
            )
        if total_steps is None or not math.isfinite(total_steps) or total_steps < 1:
            raise ValueError(
                "the length of training is unknown; give total_steps=, the number of optimizer steps, or limit "
                "training by epochs or steps"
            )
        return RankDetermination(model, optimizers, num_data, int(total_steps), **self.options)


def size_of(data: object) -> int | None:
    """The number of examples of a data set, if it knows."""
    return len(data) if isinstance(data, Sized) else None


def readings(ranks: RankDetermination) -> Readings:
    """What to log besides the NLL: KL in nats, β, the sum of all ranks, ranks by tensor, and parameters."""
    terms = ranks.terms()
    by_tensor = {weight_name(name): sum(t.format.ranks) for name, t in ranks.tensors.items()}
    return {
        "rankfold/kl_nats": terms["kl_nats"],
        "rankfold/beta": terms["beta"],
        "rankfold/parameters": float(accounting(ranks.model).total.final_parameters),
        "rankfold/ranks": float(sum(by_tensor.values())),
        **{f"rankfold/ranks/{name or 'model'}": float(total) for name, total in by_tensor.items()},
    }
