"""`saddlepoint train`: data and a network by name, a checkpoint every epoch, parameters, card and report.

Under torchrun all processes train together; the first one writes and shows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saddlepoint.runs.settings import TrainSettings

from .flags import Flag, Running, given, takes

if TYPE_CHECKING:
    from saddlepoint.runs import Execution, Run
    from saddlepoint.training import TrainingProgress

__all__ = ["train"]


@takes(TrainSettings)
def train(
    *,
    settings: Any = None,
    out: Path,
    resume: Flag = False,
    overwrite: Flag = False,
    checkpoint_every: int | None = None,
    device: str = "cpu",
    test_images: int = 1000,
    test_steps: int = 50,
    test_restarts: int = 3,
) -> int:
    """Train a network; keep parameters, card, history, report and checkpoints in a folder.

    Examples: saddlepoint train --data mnist --model A --out runs/clean

    saddlepoint train --data mnist --model mnist_cnn --threat linf:0.3 --threat l2:2.0 --threat l1:10
    --recipe paper --out runs/ampgd

    torchrun --nproc-per-node 4 -m saddlepoint train ...

    Args:
        settings: What decides the parameters.
        out: Folder for checkpoint.safetensors, model.safetensors, model.json, run.json, history.jsonl and
            report.html; with threats TensorBoard scalars too where it is installed.
        resume: Continue from the checkpoint in the folder, if there is one.
        overwrite: Replace the training in the folder.
        checkpoint_every: Write a checkpoint after every so many steps too, for long epochs.
        device: cpu, cuda, cuda:1, mps; under torchrun every process takes its own GPU if there is one.
        test_images: Attack the first so many test images in the end.
        test_steps: Steps of these attacks.
        test_restarts: How many attacks there are per threat.
    """
    loaded = TrainSettings.load(given(settings))
    from saddlepoint import runs
    from saddlepoint.runs import texts, trainings
    from saddlepoint.training.distributed import World

    from . import cluster, folders, progress, show

    threats = texts.threats(loaded.threat)
    tests = trainings.Tests(test_images, test_steps, test_restarts)
    running = Running(out=out, resume=resume, overwrite=overwrite)
    with cluster.joined() as rank, show.warnings_as_notes(quiet=rank != 0):
        recipe = trainings.recipe_of(loaded)
        shown = progress.downloads() if rank == 0 else nullcontext()
        with World.current().one_then_all(), shown as report:
            images = trainings.training_images(loaded, report)
        show.limit_used(loaded.limit, len(images[0][0]), quiet=rank != 0)
        work = trainings.prepare(loaded, recipe, threats, images, device)
        run = trainings.record_training(loaded, work, tests, loaded.command(Path("DIR")))
        try:
            with folders.opened(run, out, running, quiet=rank != 0) as execution:
                if not execution.complete:
                    every: Any = {"checkpoint_every": checkpoint_every}
                    with _shown(loaded, execution) as callback:
                        trainings.train_and_test(
                            loaded, work, tests, execution, callback=callback, **every
                        )
                run = execution.run
        except runs.RunInterrupted as stop:
            saved = f"{stop.run.done} of {run.rows} epochs are done"
            if not checkpoint_every:
                saved += (
                    " (the one under way begins again; --checkpoint-every N saves inside epochs)"
                )
            return folders.stopped(saved, out, loaded.command(out))
    return 0 if rank else _finish(run, out)


@contextmanager
def _shown(
    settings: TrainSettings, execution: "Execution"
) -> "Iterator[Callable[[TrainingProgress], None]]":
    """Progress on the terminal, and for adversarial training in TensorBoard where it is installed."""
    from saddlepoint.training import TensorBoard

    from . import progress

    first = execution.world.rank == 0
    words = [settings.data, settings.model, str(settings.method)]
    title = " ".join(words if settings.method != "clean" else words[:2])
    with progress.training(title, shown=first) as bar:
        shown: list[Callable[[TrainingProgress], None]] = [bar]
        if first and settings.threat and TensorBoard.available():
            shown.append(TensorBoard(execution.folder / "tensorboard"))

        def callback(state: "TrainingProgress") -> None:
            for show in shown:
                show(state)

        yield callback


def _finish(run: "Run", out: Path) -> int:
    """Draw the report, and say what came out."""
    from saddlepoint import report
    from saddlepoint.report import words

    report.write_report(out)
    print(f"{words.training_text(run)}; {out}")
    return 0
