"""Where images come from, so that what is saved of them keeps the names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

__all__ = ["Origin"]

# What every system takes for a name.
_FOLDER = re.compile(r"[\w(][\w ().,'+&-]{0,99}(?<![ .])")


@final
@dataclass(frozen=True)
class Origin:
    """What images were before: names of their classes, and by the number of a row the files they come from.

    Example:
        >>> Origin(("cat", "dog"), [["photos/cat/1.png"]]).classes
        ('cat', 'dog')
    """

    classes: Sequence[str] = ()
    files: Sequence[Sequence[str]] = ()

    def folders(self, count: int) -> list[str]:
        """Folders for so many labels: names of classes where they can be names of folders, else numbers.

        Example:
            >>> Origin(("cat", "dog")).folders(3), Origin(("../cat", "dog")).folders(2)
            (['cat', 'dog', '2'], ['0', '1'])
        """
        names = [*self.classes[:count], *map(str, range(len(self.classes), count))]
        plain = all(_FOLDER.fullmatch(name) for name in names)
        alike = len({name.casefold() for name in names}) < count
        return [str(number) for number in range(count)] if alike or not plain else names
