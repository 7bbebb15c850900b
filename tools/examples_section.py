"""For the reader of docstrings: our "Example:" is the section that it knows as "Examples:", code and output."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_HEADING = re.compile(r"^(\s*)Example:$", re.MULTILINE)


class ExamplesSection(Extension):
    """Renames the section when an object has been read."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Called for everything in the package."""
        if obj.docstring:
            obj.docstring.value = _HEADING.sub(r"\1Examples:", obj.docstring.value)
