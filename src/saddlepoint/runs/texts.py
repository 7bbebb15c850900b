"""Words of settings as objects of the library: numbers, times, options, losses, transforms, threats.

Modules with torch in them are imported when they are needed, so that `--help` answers at once.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from saddlepoint.runs.plain import quoted

if TYPE_CHECKING:
    from saddlepoint.losses import Loss
    from saddlepoint.training import Threat
    from saddlepoint.transforms import Transform

__all__ = [
    "LOSSES",
    "check_radius",
    "line",
    "loss",
    "number",
    "options",
    "radii",
    "renamed",
    "seconds",
    "split",
    "threats",
    "transforms",
    "written",
]

V = TypeVar("V")

LOSSES = ("cw", "cross-entropy", "soft-margin", "dlr", "clipped:THRESHOLD")

_LOSS_NAMES = {
    "cw": "cw_margin",
    "ce": "neg_cross_entropy",
    "cross-entropy": "neg_cross_entropy",
    "soft-margin": "soft_margin",
    **{name: name for name in ("cw_margin", "neg_cross_entropy", "soft_margin", "dlr")},
}
_TRANSFORMS = "identity, hflip, vflip, brightness:AMOUNT, gamma:EXPONENT, crop_resize:FRACTION, rotate:DEGREES"


def number(text: str | float, name: str = "value") -> float:
    """A number, also as a fraction.

    Example:
        >>> number("8/255") == 8 / 255, number("0.2"), number("1e-3")
        (True, 0.2, 0.001)
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        value = float(text)
    else:
        above, slash, below = str(text).strip().partition("/")
        try:
            value = float(above) / float(below) if slash else float(above)
        except (ValueError, ZeroDivisionError):
            raise ValueError(
                f"`{name}` must be a number such as 0.2 or 8/255, got {quoted(str(text))}."
            ) from None
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite, got {quoted(text)}.")
    return value


def written(value: object) -> str:
    """A value as it is written on the command line, to the last bit: fractions where they are shorter.

    Example:
        >>> written(8 / 255), written(100 / 255), written(1 / 150), written(0.2), written(3.0)
        ('8/255', '100/255', '1/150', '0.2', '3')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, float) and 0 < value < 1 and len(repr(value)) > 6:
        shares = (round(value * 255), 255), (1, round(1 / value))
        for above, below in sorted(shares, key=lambda share: share[0] > 50):  # 1/3, not 85/255
            if value == above / below:
                return f"{above}/{below}"
    return str(value)


def line(words: Sequence[str], flags: Mapping[str, object]) -> str:
    """A command line: `words`, then flags by name.

    Args:
        words: The command, without `saddlepoint`.
        flags: Values by name. None and False are left out, True is a flag alone, a list is joined by commas,
            and a tuple gives the flag once for each of its entries. One that begins with a dash follows "=".

    Example:
        >>> flags = {"models": ["A", "C"], "eps": 8 / 255, "threat": ("linf:0.3", "l2:2"), "seed": None}
        >>> line(["attack", "ensemble"], flags)
        'saddlepoint attack ensemble --models A,C --eps 8/255 --threat linf:0.3 --threat l2:2'
    """
    parts = ["saddlepoint", *words]
    for name, value in flags.items():
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None and each is not False:
                text = ",".join(map(str, each)) if isinstance(each, list) else written(each)
                flag = f"--{name.replace('_', '-')}"
                if each is True:
                    parts.append(flag)
                else:  # what begins with a dash would be read as a flag of its own
                    parts += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return shlex.join(parts)


def check_radius(norm: str, eps: float) -> None:
    """Refuse radii that cannot be meant for images in [0, 1].

    Example:
        >>> check_radius("linf", 8.0)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: `eps` of an linf ball must be at most 1, the range of a pixel, got 8; write 8/255 ...
    """
    from saddlepoint.projections import NORMS, LpBall

    if eps > 0:  # other radii are refused elsewhere, with the flag they came from
        LpBall(NORMS[norm], eps).check()


def split(text: str) -> list[str]:
    """Names separated by commas.

    Example:
        >>> split("A, B,C")
        ['A', 'B', 'C']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def options(
    what: str, name: str, rest: str, allowed: Sequence[str], read: Callable[[str, str], V]
) -> dict[str, V]:
    """The options of a word, such as `gamma=3,step_size=1/100` of minmax.

    Args:
        what: The setting, for messages.
        name: The word that they are of.
        rest: What is behind it.
        allowed: Names of options.
        read: Makes a value of a name and its text.

    Example:
        >>> options("rule", "minmax", "gamma=3", ["gamma"], lambda key, value: number(value))
        {'gamma': 3.0}
    """
    found: dict[str, V] = {}
    for part in split(rest):
        key, equals, value = part.partition("=")
        if not equals or key not in allowed:
            known = ", ".join(f"{key}=..." for key in allowed) or "no options"
            raise ValueError(f"`{what}` {name} must have {known}, got {quoted(part)}.")
        if key in found:
            raise ValueError(f"`{what}` {name} must have every option once, got {key} twice.")
        found[key] = read(key, value)
    return found


def seconds(text: str) -> float:
    """A time: seconds, or with a unit out of s, m and h.

    Example:
        >>> seconds("60s"), seconds("5m"), seconds("90")
        (60.0, 300.0, 90.0)
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    unit = text.strip()[-1:]
    try:
        value = float(text.strip().removesuffix(unit) if unit in units else text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(
            f"`--budget` must be a positive time such as 60s, 5m or 90, got {quoted(text)}."
        )
    return value * units.get(unit, 1.0)


def renamed(text: str, flags: Mapping[str, str]) -> str:
    """A complaint about arguments of the library, in the names that the user knows them by.

    Example:
        >>> renamed("`path` must be a file.", {"path": "--data"})
        '`--data` must be a file.'
    """
    for argument, flag in flags.items():
        text = text.replace(f"`{argument}`", f"`{flag}`")
    return text


def loss(text: str) -> Loss:
    """A loss: cw, cross-entropy, soft-margin, dlr, or clipped:0 for the margin cut off from below at 0.

    Example:
        >>> loss("dlr").__name__
        'dlr'
    """
    from saddlepoint import losses

    name, _, rest = text.partition(":")
    if name == "clipped" and rest:
        return losses.clipped(losses.cw_margin, number(rest, "loss"))
    if name not in _LOSS_NAMES or rest:
        raise ValueError(f"`loss` must be one of {', '.join(LOSSES)}, got {quoted(text)}.")
    function: Loss = getattr(losses, _LOSS_NAMES[name])
    return function


def transforms(names: list[str]) -> list[Transform]:
    """Transforms by name, with a number where they take one; "paper..." are families.

    Example:
        >>> [t.name for t in transforms(["identity", "hflip", "rotate:30"])]
        ['ori', 'flh', 'rot']
    """
    from saddlepoint import transforms as room

    simple = {"identity": room.identity, "hflip": room.hflip, "vflip": room.vflip}
    numbered = ("brightness", "gamma", "crop_resize", "rotate")
    makers: dict[str, Callable[[float], Transform]] = {n: getattr(room, n) for n in numbered}
    found: list[Transform] = []
    for text in names:
        name, _, rest = text.partition(":")
        if text in ("paper", "paper+rotation"):
            found += room.paper_family(rotation=text != "paper")
        elif text == "paper-random":
            found += room.paper_random_family()
        elif name in simple and not rest:
            found.append(simple[name])
        elif name in makers and rest:
            found.append(makers[name](number(rest, "transforms")))
        else:
            raise ValueError(
                f"`transforms` must be paper, paper+rotation, paper-random or names out of {_TRANSFORMS}, "
                f"got {quoted(text)}."
            )
    return found


def threats(texts: Sequence[str], flag: str = "--threat") -> dict[str, Threat]:
    """Threats by name, norm:radius or norm:radius:step_size; the norm is the name.

    Example:
        >>> found = threats(["linf:0.3", "l2:2.0:0.25"])
        >>> list(found), found["l2"].ball.eps, found["l2"].step_size
        (['linf', 'l2'], 2.0, 0.25)
    """
    from saddlepoint.projections import NORMS, LpBall
    from saddlepoint.training import Threat

    found: dict[str, Threat] = {}
    for text in texts:
        name, radius, size = (*text.split(":", 2), "", "")[:3]
        name = name.lower()
        if name not in NORMS or not radius:
            raise ValueError(
                f"`{flag}` must be norm:radius with a norm out of {', '.join(NORMS)}, such as "
                f"linf:0.3, l2:2.0 or linf:8/255, got {quoted(text)}."
            )
        if name in found:
            raise ValueError(
                f"`{flag}` must name every norm once, got {name} twice; make a run of its own for the other "
                "radius, and compare them with `saddlepoint report RUN RUN`."
            )
        if (eps := number(radius, flag)) < 0:
            raise ValueError(f"`{flag}` must have a radius >= 0, got {quoted(text)}.")
        check_radius(name, eps)
        step = number(size, f"{flag} step size") if size else None
        found[name] = Threat(LpBall(NORMS[name], eps), step)
    return found


def check_positive(threats: Mapping[str, Threat]) -> None:
    """Refuse a threat that can do nothing.

    Example:
        >>> check_positive(threats(["linf:0.3"]))
    """
    for name, threat in threats.items():
        if not float(threat.ball.eps) > 0:
            raise ValueError(
                f"`--threat` must have a positive radius, got {name}:{threat.ball.eps}."
            )


def radii(texts: Sequence[str], known: Mapping[str, Threat]) -> dict[str, float]:
    """Radii to train with, norm:radius, for some of the known threats.

    Example:
        >>> radii(["l1:12"], threats(["l2:2.0", "l1:10"]))
        {'l1': 12.0}
    """
    found = threats(texts, "--train-radius")
    if not found.keys() <= known.keys() or any(each.step_size for each in found.values()):
        raise ValueError(
            f"`--train-radius` must be norm:radius for norms of --threat, got {','.join(texts)}."
        )
    return {name: float(each.ball.eps) for name, each in found.items()}
