"""How things show themselves: one short line at a prompt, a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "Brief",
    "attack_text",
    "counted",
    "distance_text",
    "hardest",
    "html_table",
    "names_text",
    "percent",
    "percents",
    "radius_text",
    "short",
]

_MOST = 5  # names in a line


class Brief:
    """A dataclass that prints in one line: tensors by their shapes, networks by their kinds.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(repr=False)
        ... class Point(Brief):
        ...     where: Tensor
        ...     name: str
        >>> Point(torch.tensor([0.5, 2.0]), "a")
        Point(where=float32 tensor (2,) from 0.5 to 2, name='a')
    """

    def __repr__(self) -> str:
        values: Any = self
        parts = (f"{each.name}={short(getattr(self, each.name))}" for each in fields(values))
        return f"{type(self).__name__}({', '.join(parts)})"


def short(value: object) -> str:
    """A value in a few words.

    Example:
        >>> short(torch.zeros(2, 3, dtype=torch.bool)), short(nn.ReLU()), short({"x": torch.zeros(())})
        ('bool tensor (2, 3)', 'ReLU', '{x: 0}')
    """
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, nn.Module):
        return type(value).__name__
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {short(each)}" for name, each in value.items()) + "}"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return repr(value)


def _tensor(value: Tensor) -> str:
    if value.dim() == 0:
        return f"{value.item():g}"
    told = f"{str(value.dtype).removeprefix('torch.')} tensor {tuple(value.shape)}"
    if value.dtype == torch.bool or value.is_complex() or value.numel() == 0:
        return told
    low, high = value.detach().aminmax()
    return f"{told} from {low.item():g} to {high.item():g}"


def names_text(names: Sequence[str]) -> str:
    """Names in a line, the first three of many.

    Example:
        >>> names_text("ABCDEFG")
        'A, B, C, ...'
    """
    return ", ".join(names if len(names) <= _MOST else (*names[:3], "..."))


def counted(number: int, noun: str, several: str = "") -> str:
    """A number of things.

    Example:
        >>> counted(1, "row"), counted(2, "row"), counted(0, "class", "classes")
        ('1 row', '2 rows', '0 classes')
    """
    return f"{number} {noun if number == 1 else several or f'{noun}s'}"


def percent(share: float, *, at_most: bool = False) -> str:
    """A share of images, and whether it is but an upper bound; a dash where nothing was counted.

    Example:
        >>> percent(0.275), percent(0.275, at_most=True), percent(float("nan"))
        ('27.5 %', 'at most 27.5 %', '-')
    """
    return "-" if share != share else f"{'at most ' if at_most else ''}{100 * share:.1f} %"


def percents(ends: tuple[float, float]) -> str:
    """The ends of an interval.

    Example:
        >>> percents((0.15, 0.85))
        '15.0 to 85.0 %'
    """
    return f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f} %"


def radius_text(value: float) -> str:
    """A radius as people write it: in steps of 8-bit pixels where it is a whole number of them.

    Example:
        >>> radius_text(8 / 255), radius_text(0.2), radius_text(0.0078431377), radius_text(64 / 255)
        ('8/255', '0.2', '2/255', '64/255')
        >>> radius_text(1 / 3), radius_text(0.4)
        ('0.333333', '0.4')
    """
    steps = value * 255
    whole = round(steps) not in (0, 51) and abs(steps - round(steps)) < 1e-4  # 51/255 is 0.2
    if 0 < value < 0.3 and whole:
        return f"{round(steps)}/255"
    return f"{value:g}"


def distance_text(value: float, radius: float) -> str:
    """A distance in the unit in which the radius beside it is written.

    Example:
        >>> distance_text(6.13e-5, 2 / 255), distance_text(0.12345, 0.3)
        ('0.016/255', '0.123')
    """
    steps = value > 0 and radius_text(radius).endswith("/255")
    return f"{255 * value:.2g}/255" if steps else f"{value:.3g}"


def attack_text(name: str) -> str:
    """What an attack is called in tables: ours by the loss that they descend.

    Example:
        >>> attack_text("attack-ce"), attack_text("attack"), attack_text("apgd-t")
        ('ours, cross-entropy', 'ours, margin', 'apgd-t')
    """
    return {"attack": "ours, margin", "attack-ce": "ours, cross-entropy"}.get(name, name)


def hardest(kept: Sequence[float]) -> int | None:
    """Which domain was hardest: the one that kept most; None on a tie, and where there is but one.

    Example:
        >>> hardest([0.1, 0.4, 0.2]), hardest([0.0, 0.4, 0.4]), hardest([0.4])
        (1, None, None)
    """
    best = max(kept)
    return list(kept).index(best) if list(kept).count(best) == 1 and len(kept) > 1 else None


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> str:
    """A small table with a line below it; everything is escaped.

    Example:
        >>> html_table(["model"], [["<A>"]], "hardest: <A>")
        '<table><tr><th>model</th></tr><tr><td>&lt;A&gt;</td></tr></table><p>hardest: &lt;A&gt;</p>'
    """
    lines = [_line("th", headings), *(_line("td", row) for row in rows)]
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{''.join(lines)}</table>{below}"


def _line(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
