"""One runner for all experiments. What is finished is on disk, so that a stopped run can be continued.

FOLDER/LABELS/METHOD/BLOCK/STRATEGY/    a run folder of `saddlepoint.runs`: run.json, tensors, report.html
FOLDER/LABELS/METHOD/BLOCK/compare.html the strategies of a block side by side
FOLDER/LABELS/METHOD/KEY/               a measurement: run.json
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from saddlepoint import report, runs
from saddlepoint.experiments import block_parts
from saddlepoint.experiments.group_needs import check_groups
from saddlepoint.experiments.measurements import MeasureSettings, measure
from saddlepoint.experiments.places import check_networks, check_place, complete_in, line_of
from saddlepoint.experiments.plan import (
    COMPUTING,
    LABELS,
    METHODS,
    Block,
    Computing,
    Experiment,
    Labels,
    Measurement,
    Method,
    Ordered,
    Row,
    Static,
    Step,
)
from saddlepoint.experiments.reuse import Answers, reusing
from saddlepoint.problems import AbstractProblem
from saddlepoint.runs import build, rule_words
from saddlepoint.runs.materials import Images
from saddlepoint.runs.settings import AttackSettings
from saddlepoint.runs.tasks import Onlooker, Station, worked
from saddlepoint.solver.inspection import Look
from saddlepoint.training.distributed import World

__all__ = ["Setup", "reproduce"]

_CHUNK = 128  # rows between two writes to disk


@final
@dataclass(frozen=True)
class Setup:
    """How to run an experiment.

    Attributes:
        method: "apgda", "attack" or "attack-5".
        labels: The class that is attacked, "true" or "predicted"; see `saddlepoint.experiments.plan.LABELS`.
        limit: Images; None takes what each block says.
        seed: Of groups, random transformations and random starts.
        parameters: Folder with parameters of networks that are not shipped.
        precision: What networks compute in while rows are attacked, one of `COMPUTING`; verdicts and
            measurements are in float32.
        reports: Whether every row gets its HTML page.
        download: Progress of downloads, as in `saddlepoint.data.load`.
        command: The line that records say repeats it; that of this setup and all settings if None.
    """

    method: Method = "apgda"
    labels: Labels = "true"
    limit: int | None = None
    seed: int = 0
    parameters: Path | None = None
    precision: Computing = "float32"
    reports: bool = True
    download: Callable[[str, int, int], None] | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"`method` must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.labels not in LABELS:
            raise ValueError(f"`labels` must be one of {', '.join(LABELS)}, got {self.labels!r}.")
        if self.precision not in COMPUTING:
            raise ValueError(
                f"`precision` must be one of {', '.join(COMPUTING)}, got {self.precision!r}."
            )
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"`limit` must be positive, got {self.limit}.")

    def images(self, experiment: Experiment, block: Block) -> int:
        """How many images a block uses."""
        return experiment.images(block, self.limit)


def reproduce(
    experiment: Experiment,
    folder: Path,
    setup: Setup | None = None,
    *,
    resume: bool = False,
    callback: Callable[[Step], None] | None = None,
    watch: Onlooker | None = None,
    answers: Answers | None = None,
) -> None:
    """Run every row and measurement that is not in the folder yet.

    Blocks whose networks have no parameters are left out; `skipped` names them.

    Args:
        experiment: From `saddlepoint.experiments.EXPERIMENTS`, or one of your own.
        folder: Where results go; all methods and labels can share it.
        setup: How to run; the paper's method on the default number of images if None.
        resume: Continue what is there. Without it the folder must hold no results of the method and labels.
        callback: Called as rows advance.
        watch: Told how each row and measurement goes on, from the opening of its folder.
        answers: What networks say about images as they are, in this folder and others; in this one if None.

    Raises:
        ValueError: No block can run, there are too few images for a group, the folder holds results, those to
            continue are of other settings, or what is there, of another method for example, is of other
            networks.
        saddlepoint.runs.RunInterrupted: Ctrl-C; finished rows, and pages of the one under way, are on disk.
    """
    setup = Setup() if setup is None else setup
    for name, there in (("method", experiment.methods), ("labels", experiment.labels)):
        if getattr(setup, name) not in there:
            raise ValueError(
                f"`{name}` must be {' or '.join(there)} for {experiment.name}, which is about that, "
                f"got {getattr(setup, name)!r}."
            )
    missing = block_parts.skipped(experiment, setup.parameters)
    blocks = [block for block in experiment.blocks if block.key not in missing]
    measurements = [m for m in experiment.measurements if m.block.key not in missing]
    if not blocks and not measurements:
        names = block_parts.missing(
            [name for block in experiment.every_block for name in block.networks], setup.parameters
        )
        raise ValueError(
            f"`{experiment.name}` must have networks to attack, got "
            f"{block_parts.explain_missing(names)}."
        )
    check_groups(experiment, setup.limit, setup.parameters)
    target = folder / setup.labels / setup.method
    # Before any process writes there.
    World.current().agree(lambda: check_place(experiment, folder, target, resume=resume))
    answers = answers or Answers([folder])
    runner = _Runner(experiment, folder, setup, callback or (lambda _: None), watch, answers)
    runner.run(blocks, measurements)


@final
@dataclass
class _Runner:
    """Runs rows in order; networks and images are loaded and hashed once."""

    experiment: Experiment
    folder: Path
    setup: Setup
    callback: Callable[[Step], None]
    watch: Onlooker | None
    answers: Answers
    done: int = 0
    total: int = 0
    _networks: dict[str, nn.Module] = field(default_factory=dict)
    _images: dict[tuple[str, int], Images] = field(default_factory=dict)
    _hashed: dict[int, tuple[object, str]] = field(default_factory=dict)
    _built: tuple[str, AbstractProblem] | None = None
    _seen: dict[str, Look] = field(default_factory=dict)  # of this problem, by the loss

    @property
    def target(self) -> Path:
        """Where results of this method and label go."""
        return self.folder / self.setup.labels / self.setup.method

    def run(self, blocks: list[Block], measurements: list[Measurement]) -> None:
        self.total = sum(len(block.rows) for block in blocks) + len(measurements)
        used = [*blocks, *(measurement.block for measurement in measurements)]
        with self._at("open"):  # before anything is attacked with one of them
            ours = {name: self._network(name) for each in used for name in each.networks}
            hashes = build.hashes_of({}, {}, ours, known=self._hashed)
            check_networks(hashes.models, self.folder)
        for block in blocks:
            # Some weights come from what other rows end with: those are run first.
            found = (Static, Ordered)
            for row in sorted(block.rows, key=lambda row: isinstance(row.strategy.rule, found)):
                self._row(block, row)
            folders = [self.target / block.key / row.strategy.key for row in block.rows]
            if self.setup.reports and self.first and len(folders) > 1:
                page = self.target / block.key / "compare.html"
                with self._at("draw"):
                    report.write_comparison(runs.rank_runs(folders), page)
        for measurement in measurements:
            self._measurement(measurement)

    def _row(self, block: Block, row: Row) -> None:
        folder = self.target / block.key / row.strategy.key
        label = f"{block.label}, {row.strategy.label}"
        rule = self._rule(block, row)
        images, networks = self._materials(block)
        settings = block.row_settings(
            row.strategy,
            rule,
            method=self.setup.method,
            labels=self.setup.labels,
            limit=len(images.x),
            seed=self.setup.seed,
            precision=[self.setup.precision],
            batch_size=_CHUNK,
        )
        problem = self._problem(block, settings, images, networks)
        record = self._record(settings, block_parts.describe(settings), problem, block)

        def work(execution: runs.Execution, _: object) -> None:
            twin = self._twin(record, block, row)
            answers = self.answers.to(record)
            seen = self._seen.get(settings.loss) or build.look_at(settings, problem)
            self._seen[settings.loss] = seen
            job = replace(build.job_of(settings, problem, seen=seen), clean=answers)
            if twin is not None:
                job = replace(job, solve=reusing(job.solve, twin))
            runs.attack_rows(
                job, execution, callback=lambda state: self._tell(label, state.fraction)
            )

        there = complete_in(folder) is not None
        worked(record, folder, work, self.watch, resume=True)
        if self.setup.reports and self.first and not (folder / "report.html").is_file():
            with self._at("draw"):
                report.write_report(folder)
        self.done += 1
        self._tell(label, 0.0, there=there)

    def _at(self, station: Station) -> AbstractContextManager[object]:
        return nullcontext() if self.watch is None else self.watch.at(station)

    def _problem(
        self, block: Block, settings: AttackSettings, images: Images, networks: list[nn.Module]
    ) -> AbstractProblem:
        """The problem of a block, one for all its rows: predicted labels are asked for when it is made."""
        if self._built is None or self._built[0] != block.key:
            problem = block_parts.build_problem(block, settings, images, networks)
            self._built, self._seen = (block.key, problem), {}
        return self._built[1]

    def _measurement(self, measurement: Measurement) -> None:
        block = measurement.block
        images, networks = self._materials(block)
        settings = block.settings.model_copy(update={"seed": self.setup.seed})
        problem = block_parts.build_problem(block, settings, images, networks)
        plain = {**asdict(block), "settings": settings.model_dump()}
        asked = MeasureSettings(
            measurement={**asdict(measurement), "block": plain},
            method=self.setup.method,
            limit=len(images.x),
            seed=self.setup.seed,
        )
        record = self._record(settings, asdict(asked), problem, block).but(kind="measure")

        def work(execution: runs.Execution, _: object) -> None:
            began, found = time.monotonic(), None
            if self.first:  # by one process: some measure time, which others at work would disturb
                found = measure(
                    measurement,
                    problem,
                    self.setup.method,
                    self.setup.seed,
                    lambda fraction: self._tell(measurement.label, fraction),
                )
            execution.finish(found, seconds=time.monotonic() - began)

        folder = self.target / measurement.key
        there = complete_in(folder) is not None
        worked(record, folder, work, self.watch, resume=True)
        self.done += 1
        self._tell(measurement.label, 0.0, there=there)

    def _record(
        self,
        settings: AttackSettings,
        values: dict[str, Any],
        problem: AbstractProblem,
        block: Block,
    ) -> runs.Run:
        s, (images, networks) = self.setup, self._materials(block)
        asked = s.method, s.labels, s.limit, s.seed, s.parameters, settings.precision[0]
        named = dict(zip(block.networks, networks, strict=True))
        return build.record_of(
            settings,
            problem,
            images,
            named,
            s.command or line_of(self.experiment.name, *asked),
            values=values,
            known=self._hashed,
        )

    @property
    def first(self) -> bool:
        """Whether this process draws pages, where several share the work."""
        return World.current().rank == 0

    def _rule(self, block: Block, row: Row) -> str:
        rule = row.strategy.rule
        if isinstance(rule, str):
            return rule
        other = runs.finished(self.target / block.key / rule.strategy)
        metrics = runs.AttackMetrics.of(other)
        if isinstance(rule, Ordered):
            return rule_words.fixed(rule.of([metrics.accuracy[name] for name in other.domains]))
        return rule_words.fixed([metrics.weights[name] for name in other.domains])

    def _twin(self, record: runs.Run, block: Block, row: Row) -> dict[str, Tensor] | None:
        """Tensors of the same row with true labels, for a row about predicted ones; None if there are none."""
        place = self.folder / "true" / self.setup.method / block.key / row.strategy.key
        other = None if self.setup.labels == "true" else complete_in(place)
        settings = runs.hash_settings({**record.settings, "labels": "true"})
        if other is None or other.hashes != replace(record.hashes, settings=settings):
            return None
        return runs.read_results(place)[1]

    def _materials(self, block: Block) -> tuple[Images, list[nn.Module]]:
        data, limit = block.settings.data, self.setup.images(self.experiment, block)
        if (data, limit) not in self._images:
            with World.current().one_then_all():
                images = block_parts.load_images(data, limit, self.setup.download)
            self._images = {(data, limit): images}
        return self._images[data, limit], [self._network(name) for name in block.networks]

    def _network(self, name: str) -> nn.Module:
        if name not in self._networks:
            self._networks[name] = block_parts.load_network(name, self.setup.parameters)
        return self._networks[name]

    def _tell(self, label: str, fraction: float, *, there: bool = False) -> None:
        self.callback(Step(label, self.done, self.total, fraction, there))
