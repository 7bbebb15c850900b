"""`saddlepoint doctor`: is a model fit to be evaluated?"""

import json as text
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from saddlepoint.counts import check_seed_range

from .errors import UsageError, library, usage

if TYPE_CHECKING:
    from saddlepoint.doctor import Finding
    from saddlepoint.problems import Model
    from saddlepoint.runs.materials import Images

__all__ = ["doctor", "lines", "verdict"]

_MARKS = {"ok": ("✓", "32"), "warn": ("!", "33"), "fail": ("✗", "31")}


def doctor(
    *models: str,
    data: str | None = None,
    classes: str | None = None,
    size: int | None = None,
    crop: float = 1.0,
    mean: str | None = None,
    std: str | None = None,
    trust: Annotated[bool, Parameter(negative=())] = False,
    eps: str | None = None,
    limit: int = 64,
    steps: int = 20,
    seed: int = 0,
    device: str = "cpu",
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Look for what makes a model seem robust without being so. Exit code 1 if a check fails.

    Args:
        models: As in `attack`: A, mnist-a, nets.py:factory, parameters.pt:nets.py:factory, program.pt2,
            program.ts, model.onnx, timm:NAME ... Several are also tried against each other.
        data: As in `attack`.
        classes: As in `attack`.
        size: As in `attack`.
        crop: As in `attack`.
        mean: As in `attack`.
        std: As in `attack`.
        trust: As in `attack`.
        eps: An linf radius at which attacks should work, such as 8/255. [default: 0.2 for MNIST,
            else 8/255]
        limit: Use the first so many images; of a folder, from the classes in turn.
        steps: Of every attack.
        seed: Of everything random.
        device: cpu, gpu, cuda, cuda:1, mps.
        out: Write a page of the findings: a file such as doctor.html, or a folder, which gets a doctor.html.
        json: Print the findings as JSON.
    """
    from saddlepoint import report
    from saddlepoint.display import radius_text
    from saddlepoint.doctor.defaults import default_radius
    from saddlepoint.runs import materials, texts
    from saddlepoint.runs.model_words import check_there, default_data
    from saddlepoint.runs.preparing import placed
    from saddlepoint.runs.sizes import framed

    from . import printing, progress

    _check(models, limit=limit, steps=steps)
    with usage(seed="--seed"):
        check_seed_range(seed)
    names, page = [part for each in models for part in texts.split(each)], _page(out)
    with usage(**{"--models": "MODEL"}), printing.warnings_as_notes():
        check_there(names)
        given, data = data is not None, data or default_data(names)
        with progress.downloads() as downloading:
            framing = framed(names, data, classes, limit, size, crop)
            printing.size_used(size, *framing, quiet=json)
            how: Any = {"classes": classes, "size": framing[0], "crop": framing[1]}
            images = materials.load_images(data, None, limit, downloading, **how)
        radius = texts.number(default_radius(images.family) if eps is None else eps, "--eps")
        if not 0 < radius <= 1:
            raise UsageError(f"`--eps` must be in (0, 1], got {eps}.")
        there = materials.load_models(names, images, mean=mean, std=std, trust=trust)
        x, y, loaded = placed(device, images, there)
        images = replace(images, x=x, y=y)
    printing.note(f"--data was not given, so {data} was taken", quiet=given or json)
    about = f"{len(images.x)} images of {data}, linf {radius_text(radius)}"
    how = {"eps": radius, "steps": steps, "seed": seed, "callback": None if json else _print}
    everything = _examine(loaded, images, about, how, quiet=json)
    if page is not None:
        said: Any = {"data": data, "classes": classes, "size": framing[0], "mean": mean, "std": std}
        said |= {"trust": trust, "eps": eps, "limit": limit, "steps": steps, "out": out}
        unusual = {"crop": (framing[1], 1), "seed": (seed, 0), "device": (device, "cpu")}
        said |= {flag: value for flag, (value, usual) in unusual.items() if value != usual}
        line = texts.line(["doctor", *names], said)
        report.write_findings(everything, page, about=about, command=line)
    return _conclude(everything, page, json)


def _examine(
    models: "Mapping[str, Model]", images: "Images", about: str, how: Any, *, quiet: bool
) -> "dict[str, list[Finding]]":
    from saddlepoint import doctor as room
    from saddlepoint.doctor.defaults import references

    found: dict[str, list[Finding]] = {}
    for name, model in models.items():
        if not quiet:
            print(f"{name}, {about}")
        others = references(name, models, images.x)
        with library():
            found[name] = room.examine(model, images.x, images.y, references=others, **how)
    return found


def _check(models: Sequence[str], **counts: int) -> None:
    if not models:
        raise UsageError("`doctor` must be given at least one model, such as mnist-a; see --help.")
    for name, value in counts.items():
        if value < 1:
            raise UsageError(f"`--{name}` must be at least 1, got {value}.")


def _page(out: Path | None) -> Path | None:
    """Where the page goes, if that is free."""
    if out is None:
        return None
    from saddlepoint.runs.drawn import check_page

    page = (
        out if out.suffix.lower() in (".html", ".htm") and not out.is_dir() else out / "doctor.html"
    )
    if out != page and out.exists() and not out.is_dir():
        raise UsageError(f"`--out` must be an HTML file or a folder, got the file {str(out)!r}.")
    with usage():
        check_page(page)
    return page


def lines(finding: "Finding", *, colours: bool = False) -> list[str]:
    """What a check saw; if that is not well, also what it usually means and what to do."""
    mark, colour = _MARKS[finding.status]
    if colours:
        mark = f"\033[{colour}m{mark}\033[0m"
    shown = [f"  {mark} {finding.name:<14} {finding.saw}"]
    if finding.status != "ok":
        shown.append(f"    {'':<14} usually means: {finding.means}")
        shown.append(f"    {'':<14} what to do:    {finding.do}")
    return shown


def _print(finding: "Finding") -> None:
    print(*lines(finding, colours=sys.stdout.isatty()), sep="\n", flush=True)


def _conclude(everything: "dict[str, list[Finding]]", page: Path | None, json: bool) -> int:
    from saddlepoint.doctor import worst

    from . import printing

    if json:
        print(text.dumps({n: [asdict(f) for f in fs] for n, fs in everything.items()}, indent=2))
    else:
        for name, findings in everything.items():
            print(f"{name}: {verdict(findings)}")
    if page is not None and json:
        printing.note(f"report: {page}", quiet=False)
    elif page is not None:
        print(f"report: {page}")
    return 1 if "fail" in map(worst, everything.values()) else 0


def verdict(findings: "Sequence[Finding]") -> str:
    """All findings on a model in a few words."""
    from saddlepoint.doctor import worst
    from saddlepoint.report.sentences import VERDICTS

    return VERDICTS[worst(findings)]
