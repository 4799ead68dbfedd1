"""When things happen during training: the weight β of the KL, checks of the ranks, moments of pruning.

β rises from 0 to 3/2 of the KL weight w, so that ranks are found under more pressure than the evidence bound
(β = 1) has: redundant ones, which it would tolerate, die and are cut. Then β falls to w/2, or to 1/2 if w is
larger than 1, and the model that is left fits the data more closely than the bound would let it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rankfold.pruning.rules import PruningRule, check_rule
from rankfold.shapes import check_positive, is_number, is_positive_integer

# β rises to so many times the KL weight, over this share of all steps,
PRESSURE, WARMUP = 1.5, 0.3
# stays there, and falls to so many times the KL weight between these shares of the steps that follow the warm-up.
LAST, HOLD_UNTIL, BACK_AT = 0.5, 0.43, 0.5


@dataclass(frozen=True)
class Pruning:
    """When ranks are cut during training, and by which rule.

    Args:
        at: the moments at which shapes may change, as fractions of ``total_steps``; none of them before
            the warm-up has ended. ``(1.0,)`` prunes at the end only, ``()`` never.
        simplify_at: when redundant ranks are looked for, as fractions of ``total_steps``: factors are then changed,
            so that ranks that say the same become empty, and the weight they stand for stays, in CP nearly so.
        checks: how often ranks are examined between the end of the warm-up and ``total_steps``.
        patience: a rank is cut when it was found dead at this many checks running.
        rule: which ranks are dead; by default the information rule for Bayesian factors and the
            norm rule for MAP.

    >>> gentle = Pruning(at=(0.8, 1.0), patience=5)  # two moments; dead at five checks running
    >>> at_the_end = Pruning(at=(1.0,))  # shapes never change during training
    """

    at: tuple[float, ...] = (0.45, 0.5, 0.55, 0.6, 0.8, 1.0)
    simplify_at: tuple[float, ...] = (0.2, 0.3)
    checks: int = 20
    patience: int = 3
    rule: PruningRule | None = None

    def __post_init__(self) -> None:
        for name in ("at", "simplify_at"):
            moments = getattr(self, name)
            if not isinstance(moments, tuple | list):
                raise TypeError(
                    f"{name} must be a tuple of fractions of total_steps, such as (0.8, 1.0), got {moments!r}"
                )
            object.__setattr__(self, name, tuple(moments))
            if any(not (is_number(moment) and 0.0 < moment <= 1.0) for moment in moments):
                raise ValueError(f"{name} must hold fractions of total_steps in (0, 1], got {moments}")
        check_rule(self.rule)
        check_positive(checks=self.checks, patience=self.patience)
        for name in ("checks", "patience"):
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.patience > self.checks:
            raise ValueError(f"patience ({self.patience}) cannot exceed the number of checks ({self.checks})")


@dataclass(frozen=True)
class Schedule:
    """The steps of one training run.

    Args:
        total_steps: how many there will be; if unknown, ranks are never cut by themselves, and the rest goes as if the
            warm-up were 0.3 of all steps.
        warmup_steps: e_w, steps until β is at its highest; 0.3 of ``total_steps`` if left out.
        kl_weight: w.
    """

    total_steps: int | None
    warmup_steps: int | None
    pruning: Pruning
    kl_weight: float = 1.0

    def __post_init__(self) -> None:
        steps = {"total_steps": self.total_steps, "warmup_steps": self.warmup_steps}
        known = {name: count for name, count in steps.items() if count is not None}
        check_positive(**known)
        for name, count in known.items():
            object.__setattr__(self, name, int(count))
        if self.warmup_steps is None and self.total_steps is None:
            raise ValueError("give total_steps (the warm-up is 0.3 of it), or warmup_steps")
        if not isinstance(self.pruning, Pruning):
            raise TypeError(
                f"pruning must be a rankfold.Pruning(...), such as Pruning(at=()) to cut nothing, got {self.pruning!r}"
            )
        if not (is_number(self.kl_weight) and 0 <= self.kl_weight < math.inf):
            raise ValueError(f"kl_weight must be at least 0 and finite, got {self.kl_weight!r}")
        if self.total_steps is None:
            return
        if self.warmup > self.total_steps:
            raise ValueError(f"warmup_steps ({self.warmup}) cannot exceed total_steps ({self.total_steps})")
        if self.pruning.at and not any(self.prunes_at(step) for step in self._moments(self.pruning.at)):
            raise ValueError(
                f"all moments of pruning {self.pruning.at} lie before the warm-up ends, at "
                f"{self.warmup / self.total_steps:.2g} of training; name later ones, or shorten warmup_steps"
            )

    @property
    def warmup(self) -> int:
        if self.warmup_steps is not None:
            return self.warmup_steps
        return max(1, round(WARMUP * (self.total_steps or 0)))

    @property
    def length(self) -> float:
        """T, all steps; if unknown, those of which the warm-up is the usual share."""
        return self.total_steps or self.warmup / WARMUP

    def beta(self, step: int) -> float:
        """β after ``step`` steps: up to 3/2 w, and down to min(w, 1) / 2."""
        highest, last = PRESSURE * self.kl_weight, LAST * min(self.kl_weight, 1.0)
        after = max(1.0, self.length - self.warmup)  # T − e_w
        slope = (highest - last) / ((BACK_AT - HOLD_UNTIL) * after)
        back = self.warmup + BACK_AT * after
        # β = min(β_max e / e_w, β_last + slope · (e_back − e)), the latter between β_last and β_max
        falling = last + slope * (back - step)
        return min(highest * step / self.warmup, max(last, min(falling, highest)))

    def checks_at(self, step: int) -> bool:
        """Whether ranks are examined at this step: evenly spaced, from the end of the warm-up."""
        past = step - self.warmup
        return past >= 0 and past % max(1, int(self.length - self.warmup) // self.pruning.checks) == 0

    def prunes_at(self, step: int) -> bool:
        """Whether shapes may change at this step."""
        return self.total_steps is not None and step >= self.warmup and step in self._moments(self.pruning.at)

    def simplifies_at(self, step: int) -> bool:
        """Whether redundant ranks are looked for at this step."""
        return step in self._moments(self.pruning.simplify_at)

    def changes_factors_at(self, step: int) -> bool:
        return self.prunes_at(step) or self.simplifies_at(step)

    def _moments(self, shares: tuple[float, ...]) -> set[int]:
        return {round(share * self.length) for share in shares}


def check_numbers(num_data: int, step_size: float, check_every: int) -> None:
    """Refuse numbers with which no step can be right."""
    if not is_positive_integer(num_data):
        raise ValueError(f"num_data must be a positive integer, the number of training examples, got {num_data!r}")
    check_positive(check_every=check_every)
    if not (is_number(step_size) and 0 < step_size <= 1):
        raise ValueError(f"step_size must be in (0, 1], got {step_size!r}")
