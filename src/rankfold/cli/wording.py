"""Values of options that typer refuses, in plain words."""

from __future__ import annotations

import re

import typer
from typer.core import TyperGroup

# What the library that typer checks values with says, and where it says which value it was.
_RAW = re.compile(r"Input should be (?P<expected>[^,]*)")
_VALUE = re.compile(r"input_value=(?P<value>.*), input_type=")


class Commands(TyperGroup):
    """All commands; what is wrong with an option is worded here, whichever of them it is of."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = plain(error.message, str(error.__cause__))
            raise


def plain(message: str, cause: str) -> str:
    """A message about a value, which its ``cause`` names; any other message as it is.

    >>> plain("Input should be greater than or equal to 1", "[type=greater_than_equal, input_value=0, input_type=int]")
    'must be at least 1, got 0'
    >>> plain("Value error, 'tnt' is not one of 'cp', 'tt'.", "")
    "'tnt' is not one of 'cp', 'tt'."
    """
    raw, value = _RAW.match(message), _VALUE.search(cause)
    if raw is None or value is None:
        return message.removeprefix("Value error, ")
    expected = (
        raw["expected"].replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    )
    return f"must be {expected.replace('a valid', 'a')}, got {value['value']}".replace("a integer", "an integer")
