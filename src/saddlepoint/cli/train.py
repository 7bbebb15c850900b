"""`saddlepoint train`: data and a network by name, a checkpoint every epoch, parameters, card and report.

Under torchrun all processes train together; the first one writes and shows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from saddlepoint.runs.settings import TrainSettings

from . import progress, runs_shown
from .flags import Running, check_models, given, takes

if TYPE_CHECKING:
    from saddlepoint.runs import Run
    from saddlepoint.runs.training_task import TrainingTask
    from saddlepoint.training import TrainingProgress

__all__ = ["train"]


@Parameter(name="*")
@dataclass(kw_only=True)
class TrainRunning(Running):
    """What decides where things go and how much is said, and where the network is trained."""

    checkpoint_every: int | None = None
    """Write a checkpoint after every so many steps too, for long epochs."""
    device: str = "cpu"
    """cpu, gpu, cuda, cuda:1, mps; under torchrun every process takes its own GPU if there is one."""

    def flags(self) -> dict[str, object]:
        """Those that the line names which repeats the training."""
        device = None if self.device == "cpu" else self.device
        return {"device": device, "checkpoint_every": self.checkpoint_every}

    def lost(self, run: "Run") -> str:
        """What of a training that was stopped has to be done again."""
        if run.done == run.rows:
            return " (the tests of the network begin again)"
        if self.checkpoint_every:
            return ""
        return " (the one under way begins again; --checkpoint-every N saves inside epochs)"


@takes(TrainSettings)
def train(*, settings: Any = None, running: TrainRunning | None = None) -> int:
    """Train a network; keep parameters, card, history, report and checkpoints in a folder.

    With threats there are TensorBoard scalars too where it is installed.

    Under torchrun, processes train together:

    torchrun --nproc-per-node 4 -m saddlepoint train ...

    Args:
        settings: What decides the parameters.
        running: Where things go and how much is said.
    """
    from saddlepoint.runs.training_parts import line_to_evaluate
    from saddlepoint.runs.training_task import TrainingTask

    running = running or TrainRunning()
    if not str(given(settings).get("model") or "").isidentifier():
        check_models(given(settings))
    loaded = TrainSettings.load(given(settings), running.config, trust=running.trust)
    task = TrainingTask(
        settings=loaded,
        flags=running.flags(),
        device=running.device,
        checkpoint_every=running.checkpoint_every,
    )

    def done(run: "Run", folder: Path) -> int:
        line = line_to_evaluate(task.settings, folder)
        runs_shown.finish(run, folder, running, f"evaluate it with: {line}")
        return 0

    name = f"train-{Path(loaded.data).stem}-{Path(loaded.model.partition(':')[0]).stem}"
    return runs_shown.carry_out(task, running, name, partial(_shown, task), done)


@contextmanager
def _shown(
    task: "TrainingTask", folder: Path, quiet: bool
) -> "Iterator[Callable[[TrainingProgress], None]]":
    """Progress on the terminal."""
    del folder
    settings = task.settings
    words = [settings.data, settings.model, str(settings.method)]
    title = " ".join(words if settings.method != "clean" else words[:2])
    with progress.training(title, quiet=quiet, shorter=_shorter(task)) as bar:
        yield bar


def _shorter(task: "TrainingTask") -> str:
    """What makes a training shorter, in flags."""
    settings = task.settings
    ways = [f"a tenth with --limit {max(1, len(task.train[1]) // 10)}"]
    if task.recipe.epochs > 1:
        ways.append(f"--epochs {max(1, task.recipe.epochs // 4)}")
    if settings.method != "clean" and settings.steps > 1:
        ways.append(f"--steps {settings.steps // 2}")
    if settings.model == "mnist_cnn":
        ways.append("--model mnist_cnn_small")
    return ", ".join(ways[:-1]) + f" or {ways[-1]}" if len(ways) > 1 else ways[0]
