"""Figures of `python -m benchmarks --store`, kept by room, and the table that shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from pydantic import TypeAdapter

from saddlepoint.files import write_atomically

from .peers import machine
from .stores import not_whole, writing
from .timing import Figure

FILE = Path("docs/results/figures.json")
_INTRODUCTION = """
`python -m benchmarks --store` measures these and keeps them in `{path}`; rooms can be named. A ratio compares
what ran in turn in one process (in `allocation` in fresh ones), by the time that the processor worked for it;
throughput of processes is by the clock, of 1,024 images in batches of 64, without the time that imports take
and, in `evaluate`, without the doctor. Values are medians over rounds, with the lowest and the highest where
they are kept. The load is the number of processes that wanted one of
{cores} cores when a room began and ended{names}.

Rooms are measured one by one. The code is a digest of the programs that the figures of a room depend on, its
own among them, when they were measured, so that it is to be compared with a digest of the same room only.
**A room need not be of the present code**, whose digests `python -m benchmarks --codes` prints by room,
with what is stored of them.{shared}

Bare forward + backward is what torch does alone: in `overheads` the models, the sum of their logits and its
gradient, with `sp.keep_memory()` for both sides, as on the command line; in `training` with cross-entropy, of
`mnist_cnn` on MNIST under linf, l2 and l1 at once.{steps}
Steps of `overheads` are of 128 images in one batch, with loss `cw_margin`, one restart and a radius of 1e-4, so
that no row leaves; with one model `attack` itself takes `soft_margin` and two restarts, whose steps were not
measured. `precision` has 128 images in the attack on B, so that its bound of one point allows one image and no
more, 16 and R = 3 in the step of VGG16, 64 in gradients and 256 in what "auto" takes; `training` 32 and R = 5.
In `solver` `attack` and `apgda` have the first 500 test images, among them the 300 on which step lengths and
the numbers of `MinMax()` were chosen, and for l1 all are of the thousand of that choice: strength and
evaluations there flatter `attack`.

In `solver` networks are A, C, D of MNIST, and D where time grows; in `processes` A, C, D and `mnist-ampgd`; in
`image_gradients` those of MNIST. In `precision`, gradients of networks are those of torch alone, and attacks
are on networks in the plain layout, as users bring them; the command line lays shipped networks out as
`sp.models.channels_last` does, where what bfloat16 brings was not measured.
Accumulated domains keep a gradient each, as large as the images, until the weights are known, which follow from
the losses of all domains; with more than four domains fewer rows are taken at a time, so that no more is kept.
Peak memory is that of the process, in which the allocator has a part that varies from run to run; which of the
two it is where a bound is missed was not examined.
"""
_STEP = re.compile(r"step of attack on (.*), over (bare|the library's own) .*")
_LOOP = re.compile(r"(a short|the least) loop on (.*), over bare .*")
_CHEAPER = """
Where a step is below bare passes, it owes to passes that are cheaper than torch's: where images are grey and a
network is convolutional, the library differentiates its first layer in another way (`image_gradients`, one
thread, plain layout). What a step takes beyond the passes is shown by the lines over the library's own, which
have no bound."""
_CONTENTS = {
    "a short": "A short loop asks for logits and margins through the library, as `attack` does, and has signs, "
    "projections, verdicts and best iterates, with no check, weights or history",
    "the least": "The least loop has nothing of the library: the model, its margins, whether all rows are "
    "fooled, signs, a step and the box, with no best iterate",
}
_NAMES = """; beside it are the names of other processes that used more than a tenth of a core when it
began, and how much of one"""
_SHARED = """
A digest that several rooms share here ({shared}) is from before rooms had digests of their own: it is of the
library and of the comparisons above, and equals none that is printed for a room."""


@dataclass(frozen=True)
class _Room:
    """What is kept of a room."""

    begun_and_ended_with_load: tuple[float, float]
    ended: str
    cpu: str
    cores: int
    code: str
    torch: str
    figures: tuple[Figure, ...]
    others: tuple[str, ...] | None = None  # which was not kept at first


_ROOMS = TypeAdapter(dict[str, _Room])


def read(path: Path) -> dict[str, Any]:
    """The rooms of a file that `keep` has written; none if there is no file.

    Raises:
        StoreError: It holds something else.
    """
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        _ROOMS.validate_json(text, strict=True)
    except (OSError, ValueError) as error:
        raise not_whole(path) from error
    content: dict[str, Any] = json.loads(text)
    return content


def keep(
    path: Path,
    room: str,
    figures: Sequence[Figure],
    load: float,
    threads: int,
    others: Sequence[str],
) -> None:
    """Put the figures of a room into the file, in place of those it had.

    Args:
        path: Of the file.
        room: Its name.
        figures: What it found.
        load: Processes that wanted a core when it began.
        threads: Of torch.
        others: What else ran then, see `machine.others`.

    Raises:
        StoreError: The file holds something else, or another process does not end writing.
    """
    here = machine.machine(threads)
    found = {
        "begun_and_ended_with_load": [load, here["load"]],
        "others": list(others),
        "ended": machine.now(),
        "cpu": here["cpu"],
        "cores": here["cores"],
        "code": machine.code_of(room),
        "torch": machine.versions()["torch"],
        "figures": [asdict(figure) for figure in figures],
    }
    with writing(path):
        content = {**read(path), room: found}
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def section(path: Path, elsewhere: Sequence[str] = ()) -> str:
    """The figures as a section of a page; nothing if none are kept.

    Args:
        path: Of the file.
        elsewhere: What `quick` misses beside AutoAttack in the tables above, which are no rooms.
    """
    content = read(path)
    if not content:
        return ""
    cores = max(room["cores"] for room in content.values())
    names = _NAMES if any(room.get("others") for room in content.values()) else ""
    codes = [room["code"] for room in content.values()]
    several = [name for name, room in content.items() if codes.count(room["code"]) > 1]
    shared = _SHARED.format(shared=", ".join(several)) if several else ""
    lines = [
        "## Overheads and own ratios\n",
        _INTRODUCTION.format(
            path=FILE.as_posix(),
            cores=cores,
            names=names,
            shared=shared,
            steps=_steps(content.get("overheads", {}).get("figures", ()))
            + _by_reproduce(path.with_name("cost.json")),
        ).lstrip(),
    ]
    lines.append(
        "| Room | Load | Other processes | Ended (UTC) | Code | CPU | torch |\n|---|---:|---|---|---|---|---|"
    )
    for name, room in content.items():
        load = " to ".join(f"{each:.1f}" for each in room["begun_and_ended_with_load"])
        where = (room[each] for each in ("ended", "code", "cpu", "torch"))
        others = machine.said(room["others"]) if "others" in room else "not recorded"
        lines.append(f"| {' | '.join((name, load, others, *where))} |")
    lines.append(f"\n{_missed(content)} {_elsewhere(elsewhere)}\n")
    lines.append("| Room | Figure | Value | Wanted | |\n|---|---|---:|---:|---|")
    for name, room in content.items():
        for figure in room["figures"]:
            kept = "kept" if figure["passed"] else "**missed**"
            kept = "" if figure["bound"] == "-" else kept
            value = f"{figure['value']:.3f}"
            if figure.get("rounds"):
                value += " ({:.3f} to {:.3f})".format(*figure["rounds"])
            lines.append(f"| {name} | {figure['name']} | {value} | {_bound(figure)} | {kept} |")
    return "\n".join(lines) + "\n"


def _missed(content: Mapping[str, Any]) -> str:
    """What is not as it is wanted, before the table in which it would have to be looked for."""
    figures = [figure for room in content.values() for figure in room["figures"]]
    bounded = [figure for figure in figures if figure["bound"] != "-"]
    missed = [figure for figure in bounded if not figure["passed"]]
    if not missed:
        return f"No bound of {len(bounded)} of these rooms is missed."
    listed = "; ".join(
        f"{each['name']}: {each['value']:.3f}, wanted {_bound(each)}" for each in missed
    )
    return f"**Missed, {len(missed)} of {len(bounded)} bounds of these rooms**: {listed}."


def _elsewhere(missed: Sequence[str]) -> str:
    """What this count leaves out: tables of other libraries, and other pages."""
    beside = f" `quick` misses what is wanted of it above: {'; '.join(missed)}." if missed else ""
    return (
        f"The tables above and other pages are not in this count.{beside} What share of its ceiling `attack` "
        "reaches is in docs/CEILING.md, and how `quick` does beside AutoAttack on other networks in "
        "docs/RESULTS.md."
    )


def _bound(figure: Mapping[str, Any]) -> str:
    bound: str = figure["bound"]
    return bound.replace("<=", "at most").replace(">=", "at least")


def _steps(figures: Sequence[Mapping[str, Any]]) -> str:
    """What steps take over bare passes, in every round or in the median only, and over the library's own."""
    over: dict[str, dict[str, tuple[float, float]]] = {"bare": {}, "the library's own": {}}
    for figure in figures:
        if found := _STEP.fullmatch(figure["name"]):
            highest = (figure.get("rounds") or [figure["value"]])[-1]
            over[found[2]][found[1]] = figure["value"], highest
    bare, own = over["bare"], over["the library's own"]
    always = [name for name, (_, highest) in bare.items() if highest < 1]
    often = [name for name, (value, _) in bare.items() if value < 1 and name not in always]
    said = [_measured([*bare])] if bare else []
    if always:
        said.append(f"A step is below bare passes in every round on {'; '.join(always)}.")
    if often:
        said.append(f"On {'; '.join(often)} its median is below, but not every round: not shown.")
    if own:
        told = "; ".join(f"{name} {value:.3f}" for name, (value, _) in own.items())
        said.append(f"Over the library's own passes a step takes: {told}.")
    said += [
        f"Below one over its own passes, which it contains, a step on {name} can only be by noise: of "
        f"{100 * (1 - value):.1f} % here."
        for name, (value, _) in own.items()
        if value < 1
    ]
    said += _loops(figures)
    return (_CHEAPER if bare else "") + "".join(f"\n{fill(each, 112)}" for each in said)


def _by_reproduce(path: Path) -> str:
    """What `reproduce cost` found of min-max over average; nothing where that is not stored."""
    if not path.exists():
        return ""
    table = json.loads(path.read_text(encoding="utf-8"))["lines"]
    found = [
        f"{setting} {ratio:.3f} ({ends[0]:.3f} to {ends[1]:.3f})"
        for setting, method, *_, ratio, ends in table
        if method == "attack"
    ]
    return "\n" + fill(
        "Min-max over average is in docs/RESULTS.md, too, from `saddlepoint reproduce cost`, by the clock, per "
        f"evaluation and at the paper's radius, where rows leave as they are fooled: {'; '.join(found)}. Here "
        "no row is fooled; whether that is why the two differ was not looked into.",
        112,
    )


def _measured(names: Sequence[str]) -> str:
    """In which norms and on which data steps are measured: a figure says nothing of others."""
    where: dict[str, dict[str, list[str]]] = {}
    for name in names:
        shown, _, norm = name.rpartition(", ")
        data, _, networks = shown.partition(" ")
        where.setdefault(norm, {}).setdefault(data, []).append(networks)
    told = "; ".join(
        f"in {norm} on {' and '.join(f'{data} ' + ', '.join(each) for data, each in on.items())}"
        for norm, on in where.items()
    )
    return f"**Steps are measured {told}, and nowhere else**: other norms, data and networks have no figure."


def _loops(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    """What loops of fewer operations contain, and what they take; only of those that are measured."""
    return [
        f"{_CONTENTS[found[1]]}: on {found[2]}, it takes {figure['value']:.3f} of bare passes."
        for figure in figures
        if (found := _LOOP.fullmatch(figure["name"]))
    ]
