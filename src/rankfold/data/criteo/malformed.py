"""Lines that are not of the Criteo format: a few are left out and named, many are an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from rankfold.data.errors import DamagedData

MOST_MALFORMED = 100  # unless more are allowed
_MOST_EXAMPLES = 20


@final
@dataclass
class Tally:
    """Malformed lines so far, of which ``limit`` may be left out; ``remedy`` says what to do if there are more."""

    limit: int
    remedy: str = "Mend the file"
    count: int = 0
    _alike: dict[str, tuple[str, int]] = field(default_factory=dict)  # by fault: the first line, and how many

    def note(self, path: Path, line: int, why: str) -> None:
        self.count += 1
        first, count = self._alike.get(why, (f"{path}:{line}", 0))
        self._alike[why] = first, count + 1
        if self.count > self.limit:
            shown = "\n  ".join(self.examples)
            raise DamagedData(
                f"more than {self.limit} malformed lines, so this may not be a file in the Criteo format; the first "
                f"are\n  {shown}\n{self.remedy}"
            )

    @property
    def examples(self) -> list[str]:
        """The first line with each fault, and how many more have the same."""
        return [
            f"{first}: {why}" + (f"; {count - 1} more of the kind" if count > 1 else "")
            for why, (first, count) in list(self._alike.items())[:_MOST_EXAMPLES]
        ]
