"""TensorBoard scalars, where tensorboard is installed."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any, final

from .batches import TrainingProgress

__all__ = ["TensorBoard"]


@final
class TensorBoard:
    """A callback for `train` that writes every epoch's means and accuracies as TensorBoard scalars.

    Scalars are named "training/loss", "training/weight/linf", "validation/union" and so on, over epochs.

    Args:
        folder: Where the event files go; created with the first epoch.

    Raises:
        ImportError: tensorboard is not installed; ask `TensorBoard.available()` first.
    """

    def __init__(self, folder: str | Path) -> None:
        if not self.available():
            raise ImportError(
                "`TensorBoard` needs the package tensorboard: pip install tensorboard"
            )
        self.folder = Path(folder)
        self._writer: Any = None

    @staticmethod
    def available() -> bool:
        """Whether tensorboard is installed."""
        return importlib.util.find_spec("tensorboard") is not None

    def __call__(self, progress: TrainingProgress) -> None:
        """Write the scalars of an epoch that has just ended; other steps leave no trace."""
        if progress.step < progress.steps:
            return
        if self._writer is None:
            # Events of a later epoch are left over from a run that was stopped and is now continued.
            self._writer = _summary_writer(self.folder, purge_step=progress.epoch)
        values = {f"training/{key}": value for key, value in progress.stats.items()}
        values |= {f"validation/{key}": value for key, value in (progress.validation or {}).items()}
        for name, value in values.items():
            self._writer.add_scalar(name, value, progress.epoch)
        self._writer.flush()


def _summary_writer(folder: Path, purge_step: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard imports deprecated pieces of its own
        from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=purge_step)
