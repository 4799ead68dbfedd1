"""What is known of a training while it goes on, and who is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch.

    Attributes:
        stage: ``train``, ``dense`` or ``fine-tune``.
        nll, accuracy: mean over the epoch's training batches, with the factors sampled for each step.
        kl_nats, beta: at the epoch's end; 0 without a prior.
        parameters: what is left when only the posterior mean is kept.
        ranks: of every tensorized layer.
        seconds: how long the epoch took.
    """

    stage: str
    epoch: int
    nll: float
    accuracy: float
    kl_nats: float
    beta: float
    parameters: int
    ranks: dict[str, list[int]]
    seconds: float


@dataclass(frozen=True)
class Moment:
    """How far training is within an epoch: after ``step`` of its ``steps``; epochs count from 1.

    The first ``before`` of them were done before an interruption.
    """

    stage: str
    epoch: int
    step: int
    steps: int
    before: int = 0

    @property
    def share(self) -> float:
        return self.step / self.steps

    @property
    def share_before(self) -> float:
        return self.before / self.steps


class StopAsked(BaseException):
    """A listener was asked to stop, and there is time for a checkpoint; a :class:`KeyboardInterrupt` means at once.

    Attributes:
        is_kept: whether what was trained so far has a checkpoint; false of a training without a folder for one.
    """

    is_kept = True


@dataclass(frozen=True)
class Listener:
    """Who is told of a training; a :class:`StopAsked` of either stops it, and what is done gets a checkpoint.

    Args:
        epoch: called after every epoch, before its checkpoint is written.
        moment: called twice a second within one.
    """

    epoch: Callable[[Epoch], None] = lambda epoch: None
    moment: Callable[[Moment], None] = lambda moment: None
