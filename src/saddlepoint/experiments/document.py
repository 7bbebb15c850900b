"""The tables of a Markdown document, written from stored summaries between markers.

A table begins with `<!-- table: NAME -->` and ends with `<!-- end -->`. It has one line per strategy, or is
that of a measurement; one that begins with `<!-- table: NAME, details -->` has one line per strategy and
source, with every accuracy, and `<!-- table: NAME, paired -->` what strategies win over the average. The
table of claims begins with `<!-- claims -->`. Over several experiments there are those of the rows in which
`attack` is below `apgda`, `<!-- behind: NAME, NAME -->`, and min-max not above the average,
`<!-- level: NAME, NAME -->`, and one with a line for each experiment, `<!-- glance: NAME, NAME -->`. What
benchmarks write between such markers stays.

Text that was written by hand about tables begins with `<!-- about: NAME, NAME; DIGEST -->`. If the tables are
no longer those of the digest, a line below it says so, and which digest to write once the text is true again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from saddlepoint import models
from saddlepoint.experiments.catalogue import EXPERIMENTS, find
from saddlepoint.experiments.claims import claims_table
from saddlepoint.experiments.finished import Attacked, Results, lowered
from saddlepoint.experiments.glance import glance_table
from saddlepoint.experiments.not_ahead import behind_table, level_table
from saddlepoint.experiments.pairs import pair_table
from saddlepoint.experiments.plan import UNREPORTED, Block, Row
from saddlepoint.experiments.stored import read_summary
from saddlepoint.experiments.summary import found_weights, tables_of
from saddlepoint.experiments.summary_files import read_content
from saddlepoint.report.tables import Cell, Column, Table, to_markdown
from saddlepoint.runs.settings import UniversalSettings

__all__ = ["has_markers", "named_tables", "overview", "write_tables"]

_MARKED = re.compile(r"<!-- table: ([\w-]+)(?:, (\w+))? -->\n(.*?)<!-- end -->", re.DOTALL)
_SEVERAL = re.compile(r"<!-- (behind|level|glance): ([\w, -]+) -->\n(.*?)<!-- end -->", re.DOTALL)
_CLAIMS = re.compile(r"<!-- claims -->\n(.*?)<!-- end -->", re.DOTALL)
_ABOUT = re.compile(r"<!-- about: ([\w, -]+); (\w+) -->\n(?:> The tables have changed [^\n]*\n\n)?")
_OPENING = re.compile(
    r"<!-- (?:table: (?P<table>[\w-]+)(?:, \w+)?|(?:behind|level|glance): (?P<several>[\w, -]+)|claims) -->"
    r"(?=\n|\Z)"
)
_ALMOST = re.compile(
    r"^[ \t>]*(<!--[ \t]*(?:(table|behind|level|glance|about)[ \t]*[:;=]|(claims)[ \t]*[:;]?[ \t]*--).*)$",
    re.MULTILINE | re.IGNORECASE,
)
_WRITTEN = {
    "table": "`<!-- table: NAME -->`, `<!-- table: NAME, details -->` or `<!-- table: NAME, paired -->`",
    "behind": "`<!-- behind: NAME, NAME -->`",
    "level": "`<!-- level: NAME, NAME -->`",
    "glance": "`<!-- glance: NAME, NAME -->`",
    "about": "`<!-- about: NAME, NAME; DIGEST -->`, the digest being letters and digits, above its text",
    "claims": "`<!-- claims -->`",
}
_END = "<!-- end -->"
_OTHERS = ("patches",)  # tables of benchmarks
_NO_PAIRS = "The stored runs were made before verdicts were kept, so that there are no paired differences.\n"


def write_tables(text: str, store: Path) -> str:
    """The document with its tables as the stored summaries give them; everything else stays.

    Args:
        text: Markdown with markers.
        store: Folder with summaries.

    Raises:
        ValueError: A marker names no experiment or has no end, or is not quite one; or its summary is missing
            or of other settings.

    Example:
        >>> write_tables("No markers, no change.", Path())
        'No markers, no change.'
    """
    _check_markers(text)

    def fill(match: re.Match[str]) -> str:
        name, form, _ = match.groups()
        if name in _OTHERS:
            return match.group(0)
        opening = match.group(0).partition("\n")[0]
        results = read_summary(find(name), store)
        made_by = "" if form else _made_by(results)
        table = _table(results, form or "overview")
        others = _not_recorded(results, store) + _not_shipped(results.networks, "The numbers")
        return f"{opening}\n{table}{made_by}{others}<!-- end -->"

    text = _ABOUT.sub(lambda match: _about(match, store), _MARKED.sub(fill, text))
    text = _SEVERAL.sub(lambda match: _several(match, store), text)
    return _CLAIMS.sub(lambda _: _claims(store), text)


def has_markers(text: str) -> bool:
    r"""Whether there is anything in a document that `write_tables` looks after, or refuses.

    Example:
        >>> has_markers("<!-- claims -->\n<!-- end -->"), has_markers("About `<!-- claims -->`.")
        (True, False)
    """
    return any(marker.search(text) is not None for marker in (_OPENING, _ABOUT, _ALMOST))


def named_tables(text: str) -> list[str]:
    r"""The experiments that a document shows, in order.

    Example:
        >>> named_tables("<!-- table: cost -->\n<!-- end -->")
        ['cost']
    """
    named = dict.fromkeys(match.group(1) for match in _MARKED.finditer(text))
    return [name for name in named if name not in _OTHERS]


def _check_markers(text: str) -> None:
    """Refuse, before anything is replaced, what is almost a marker, or is of no experiment or has no end."""
    for match in _ALMOST.finditer(text):
        if not any(marker.match(text, match.start(1)) for marker in (_OPENING, _ABOUT)):
            kind = (match[2] or match[3]).lower()
            raise ValueError(
                f"`{match[1].strip()}` must be written {_WRITTEN[kind]}, with these spaces and nothing "
                f"behind it on its line, got {match[1]!r}."
            )
    for match in _OPENING.finditer(text):
        marker = match.group(0)
        _check_names(marker, match["table"] or match["several"] or "")
        rest = text[match.end() :]
        following = rest[rest.find("<!-- ") :] if "<!-- " in rest else ""
        if not following.startswith(_END):
            got = repr(following.partition("\n")[0][:100]) if following else "none"
            raise ValueError(
                f"`{marker}` must have its `{_END}` before any other marker, got {got}."
            )
    for match in _ABOUT.finditer(text):
        _check_names(match.group(0).partition("\n")[0], match.group(1))


def _check_names(marker: str, names: str) -> None:
    for name in names.split(", ") if names else ():
        try:
            if name not in _OTHERS:
                find(name)
        except ValueError as error:
            raise ValueError(str(error).replace("`name`", f"`{marker}`", 1)) from error


def _about(match: re.Match[str], store: Path) -> str:
    """A marker of text, and the line that says so if it is about older tables."""
    opening = match.group(0).partition("\n")[0]
    digest = hashlib.sha256()
    for name in match.group(1).split(", "):
        results = read_summary(find(name), store)
        forms = ("overview",) if results.experiment.measurements else ("overview", "details")
        digest.update("".join(_table(results, form) for form in forms).encode())
    now = digest.hexdigest()[:12]
    if now == match.group(2):
        return f"{opening}\n"
    return (
        f"{opening}\n> The tables have changed since the following was written; where they differ, "
        f"the tables are right. <!-- now {now} -->\n\n"
    )


def _several(match: re.Match[str], store: Path) -> str:
    """A table over several experiments."""
    opening = match.group(0).partition("\n")[0]
    found = [read_summary(find(name), store) for name in match.group(2).split(", ")]
    form = match.group(1)
    said = _plain(glance_table(found)) if form == "glance" else _not_ahead(found, form)
    others = "".join(_not_shipped(r.networks, f"The numbers of {r.experiment.name}") for r in found)
    return f"{opening}\n{said}{others}<!-- end -->"


def _not_ahead(found: Sequence[Results], form: str) -> str:
    table, said = behind_table(found) if form == "behind" else level_table(found)
    return said + (f":\n\n{_plain(table)}" if table.lines else ".\n")


def _claims(store: Path) -> str:
    table, said = claims_table(store)
    return f"<!-- claims -->\n{said}\n\n{_plain(table)}{_of_others(store)}<!-- end -->"


def _table(results: Results, form: str) -> str:
    experiment = results.experiment
    if experiment.measurements:
        empty = tables_of(Results(experiment, ()))[0]
        return _plain(replace(empty, lines=results.lines, notes=()))
    if form == "details":
        return _plain(replace(tables_of(results)[0], notes=tuple(lowered(results))))
    if form == "paired":
        tables = pair_table(results)
        return _plain(tables[0]) if tables else _NO_PAIRS
    if form != "overview":
        raise ValueError(
            f"a marker must say `details` or `paired` after {experiment.name}, got {form!r}."
        )
    return _plain(replace(overview(results), notes=(*found_weights(results), *lowered(results))))


def _made_by(results: Results) -> str:
    """The line below a table."""
    said = [each for each in results.versions if re.fullmatch(r"[\w.+-]+", each)]
    return f"\nRun with saddlepoint {' and '.join(said)}.\n" if said else ""


def _of_others(store: Path) -> str:
    """Lines on all summaries of other parameters than are shipped: claims rest on several."""
    there = (each for each in EXPERIMENTS.values() if (store / f"{each.name}.json").is_file())
    found = ((each.name, read_content(each, store)["networks"]) for each in there)
    return "".join(_not_shipped(networks, f"The numbers of {name}") for name, networks in found)


def _not_shipped(networks: Mapping[str, str], numbers: str) -> str:
    """A line that says so where numbers are of networks that are shipped with other parameters by now."""
    known = models.shipped()
    names = [
        name
        for name, found in sorted(networks.items())
        if name in known and found != models.card(name).sha256
    ]
    if not names:
        return ""
    return f"\n{numbers} are of other parameters of {' and '.join(names)} than are shipped.\n"


def _not_recorded(results: Results, store: Path) -> str:
    """A line that says of which networks there are lines of a measurement, and no hash."""
    experiment = results.experiment
    keys = {each["key"] for each in read_content(experiment, store)["measured"]}
    measured = [m.block for m in experiment.measurements if m.key in keys]
    every = {name for block in measured for name in block.networks}
    if not (names := sorted(every - set(results.networks))):
        return ""
    return (
        "\nIt was not recorded which parameter files of these networks the lines were measured with: "
        f"{', '.join(names)}.\n"
    )


def _plain(table: Table) -> str:
    """Without the title: the document has headings of its own."""
    return to_markdown(table).partition("\n\n")[2]


def overview(results: Results) -> Table:
    """ASR_all of every setting and strategy, with 95 % interval and lift, in a column for every source.

    Groups of images show ASR_avg before it. The last column has the mean evaluations per row, in the order
    of the sources.

    Args:
        results: Of an experiment that attacks.
    """
    experiment = results.experiment
    sources = results.sources
    reported = any(row.paper != UNREPORTED for block in experiment.blocks for row in block.rows)
    columns = [Column("Setting"), Column("Strategy"), Column("Images")]
    columns += [Column("paper")] if reported else []
    columns += [Column(_heading(source.method, source.labels)) for source in sources]
    lines: list[tuple[Cell, ...]] = []
    for block in experiment.blocks:
        for row in block.rows:
            items = [results.one(block, row.strategy.key, source) for source in sources]
            done = [item for item in items if item is not None]
            if not done:
                continue
            counts = list(dict.fromkeys(item.images for item in done))
            images = ", ".join(str(count) for count in counts)
            cells: list[Cell] = [block.label, row.strategy.label, images]
            cells += [_paper(block, row)] if reported else []
            cells += [None if item is None else _ours(results, item) for item in items]
            spent = ", ".join("-" if i is None else f"{i.evaluations:.1f}" for i in items)
            lines.append((*cells, spent))
    columns.append(Column("evaluations"))
    return Table(experiment.title, tuple(columns), tuple(lines))


def _heading(method: str, labels: str) -> str:
    name = "`attack`, 5 restarts" if method == "attack-5" else f"`{method}`"
    return name if labels == "true" else f"{name}, {labels} labels"


def _paper(block: Block, row: Row) -> str | None:
    paper = row.paper
    if paper.asr_all is None:
        return None
    mean = f"{paper.asr_avg:.1f} / " if _shows_mean(block) and paper.asr_avg is not None else ""
    return f"{mean}{paper.asr_all:.2f}{_lift(paper.lift)}"


def _ours(results: Results, item: Attacked) -> str:
    low, high = item.interval
    mean = f"{item.asr_mean:.1f} / " if _shows_mean(item.block) else ""
    rate = f"{item.asr_all:.1f} [{low:.1f}, {high:.1f}]"
    return f"{mean}{rate}{_lift(results.lift(item))}"


def _shows_mean(block: Block) -> bool:
    return isinstance(block.settings, UniversalSettings)


def _lift(lift: float | None) -> str:
    return "" if lift is None else f" ({lift:+.1f} %)"
