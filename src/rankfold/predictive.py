"""Predictions with the spread that the posterior over the weights gives them.

The posterior mean needs nothing from here: ``model.eval()`` gives it. By independence of the
factors, weights rebuilt from their means *are* the mean weights.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankfold.batch_norm import Batch, called_with, checked, collecting, norms_of, restoring
from rankfold.gaussian import at_least_float32
from rankfold.layers.base import posterior_mean
from rankfold.posterior import FactorPosterior, GaussianPosterior
from rankfold.shapes import is_integer
from rankfold.wrapping import warn


def predict(
    model: nn.Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    samples: int = 32,
    transform: Callable[[Any], Tensor] | None = None,
    seed: int | None = None,
    bn_batches: Iterable[Batch] | None = None,
) -> tuple[Tensor, Tensor]:
    """Monte Carlo mean and standard deviation of what the model predicts.

    Factors and biases are drawn anew for every sample; all else is in eval mode.
    No gradients are kept, and the samples are never held all at once. All modes of the model are
    as before afterwards.

    Args:
        inputs: given to the model as they are.
        kwargs: what the model takes by keyword, such as ``{"attention_mask": mask}``.
        samples: how many draws; 0 gives the posterior mean's prediction and a spread of zero.
        transform: applied to every sample's output before averaging, such as a softmax, or a
            function that picks one tensor out of a structured output.
        seed: makes the draws repeatable, without touching the global random state.
        bn_batches: for a model with batch norm, inputs of training, a tensor or a tuple per batch, as for
            :func:`update_bn`. Every draw is normalised by the statistics that it has on them, as it was in training;
            some thousand examples will do. They are kept in memory.

    Returns:
        Mean and standard deviation (over the posterior, with n − 1), each of the output's shape, in
        at least float32.

    >>> import rankfold as rf
    >>> layer = rf.Linear(8, 6, config=rf.CP(max_rank=2))
    >>> mean, std = predict(layer, torch.ones(3, 8), samples=4, seed=0)
    >>> mean.shape, bool((std > 0).all())
    (torch.Size([3, 6]), True)
    """
    if not is_integer(samples) or samples < 0 or samples == 1:
        raise ValueError(
            f"samples must be 0 (the posterior mean, no spread) or at least 2, got {samples!r}; "
            f"for a single draw call the model under rankfold.sampled(model)"
        )
    if not (seed is None or is_integer(seed)):
        raise TypeError(f"seed must be an integer or None, got {seed!r}")
    samples, seed = int(samples), None if seed is None else int(seed)
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be a function of the model's output, got {transform!r}")
    if not (kwargs is None or isinstance(kwargs, Mapping)):
        raise TypeError(f"kwargs must map names to what the model takes by keyword, got {type(kwargs).__name__}")
    keywords = dict(kwargs or {})
    transform = transform or _as_tensor
    with torch.no_grad():
        if samples == 0:
            with posterior_mean(model):
                mean = _precise(transform(model(*inputs, **keywords)))
            return mean, torch.zeros_like(mean)
        if bn_batches is None:
            warn_of_batch_norm(model)
            with sampled(model), _seeded(model, seed):
                return mean_and_std(_precise(transform(model(*inputs, **keywords))) for _ in range(samples))
        with closing(draws(model, samples, bn_batches, seed)) as prepared:
            return mean_and_std(_precise(transform(draw(*inputs, **keywords))) for draw in prepared)


@contextmanager
def sampled(model: nn.Module) -> Iterator[None]:
    """Within this context every forward draws new factors, and all else is in eval mode.

    >>> import rankfold as rf
    >>> model = torch.nn.Sequential(rf.Linear(8, 6, config=rf.CP(max_rank=2)), torch.nn.Dropout())
    >>> with torch.no_grad(), sampled(model):
    ...     draws = [model(torch.ones(1, 8)) for _ in range(3)]
    """
    with posterior_mean(model):  # all in eval mode, and back to what it was on the way out
        for module in model.modules():
            if isinstance(module, FactorPosterior):
                module.train()
        yield


def draws(
    model: nn.Module, samples: int, bn_batches: Iterable[Batch], seed: int | None = None
) -> Generator[Callable[..., Any], None, None]:
    """Functions that call the model, each with one draw of its weights and the statistics they have on ``bn_batches``.

    Use each before asking for the next. The model's own modes and statistics are back when all are done, or on
    ``close()``: without it an error in between would leave the model changed for as long as its traceback lives.
    """
    norms, batches = norms_of(model), checked(bn_batches)
    generator = None if seed is None else torch.Generator("cpu").manual_seed(seed)
    with sampled(model), restoring(norms):
        for number in torch.randint(2**62, (samples,), generator=generator, device="cpu").tolist():
            draw = partial(_one_draw, model, number)
            with collecting(norms):
                for batch in batches:
                    called_with(draw, batch)
            yield draw


def _one_draw(model: nn.Module, number: int, /, *inputs: Any, **keywords: Any) -> Any:
    """Call the model with the noise of this number: the same, and so the same weights, in every call."""
    with _seeded(model, number):
        return model(*inputs, **keywords)


def warn_of_batch_norm(model: nn.Module) -> None:
    """Say that draws are about to be normalised by statistics that are not theirs."""
    if norms_of(model) and any(isinstance(module, GaussianPosterior) for module in model.modules()):
        warn(
            "the model has batch norm, and no draw of its weights has the running statistics; predictions may be far "
            "off. Give bn_batches=, some batches of training inputs, so that every draw gets its own"
        )


def mean_and_std(values: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of at least two tensors, one pass, one value in memory at a time."""
    mean = next(values).clone()
    squares = torch.zeros_like(mean)
    count = 1
    for count, value in enumerate(values, start=2):
        # m_n = m_{n−1} + (x − m_{n−1})/n,   S_n = S_{n−1} + (x − m_{n−1})(x − m_n)
        delta = _difference(value, mean)
        mean += delta / count
        squares += delta * _difference(value, mean)
    return mean, (squares / (count - 1)).sqrt()


def _difference(value: Tensor, mean: Tensor) -> Tensor:
    """``x − m``, and 0 where both are the same infinity, as of a logit that is always masked."""
    return torch.where(value == mean, torch.zeros_like(mean), value - mean)


def _as_tensor(output: Any) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the model returned {type(output).__name__}, not a tensor; give transform= to pick one, "
            f"such as transform=lambda output: output[0]"
        )
    return output


def _precise(output: Tensor) -> Tensor:
    if not isinstance(output, Tensor):
        raise TypeError(f"transform must return a tensor, got {type(output).__name__}")
    return output.to(at_least_float32(output.dtype))


@contextmanager
def _seeded(model: nn.Module, seed: int | None) -> Iterator[None]:
    """Within this context random numbers come from ``seed``, if there is one."""
    if seed is None:
        yield
        return
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield
