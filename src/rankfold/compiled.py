"""What is decided from shapes alone is decided once, outside of what ``torch.compile`` compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def constant(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Compute once per arguments, which are hashable; to compiled code the result is a constant.

    >>> constant(sum)((1, 2, 3))
    6
    """
    cached = lru_cache(maxsize=16384)(function)

    @wraps(function)
    def look_up(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        return cached(*args, **kwargs)  # type: ignore[arg-type]  # arguments are strings, integers and tuples

    # all that torch.compiler.assume_constant_result does, after a second or two of importing the compiler
    look_up._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return look_up
