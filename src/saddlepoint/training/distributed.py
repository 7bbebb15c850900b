"""Work by several processes: in training every one sees the same batches and takes its share of the rows.

Gradients are summed over the processes just before the optimiser moves (a hook on the optimiser), each
weighted by its share of the rows. The result is the gradient of the mean over the whole batch, whatever the
step function does and however the rows are divided, and no hook sits on the model: the inner attacks of
adversarial training communicate nothing. Parameters start equal and stay equal.

Batch norm normalises with the rows of its own process, as everywhere without synchronised batch norm; its
running statistics are averaged over the processes at the end of every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["World"]

T = TypeVar("T")


@final
@dataclass
class World:
    """The processes of a run; a single one unless `torch.distributed` has been initialised.

    Attributes:
        rank: Number of this process, from 0. Process 0 writes files.
        size: How many there are.
        share: Share of the current batch that this process works on.

    Example:
        >>> World(rank=1, size=2).rows(5)
        slice(3, 5, None)
    """

    rank: int = 0
    size: int = 1
    share: float = 1.0

    @staticmethod
    def current() -> World:
        """The world this process lives in."""
        if dist.is_available() and dist.is_initialized():
            return World(dist.get_rank(), dist.get_world_size())
        return World()

    def rows(self, count: int) -> slice:
        """The rows of a batch of `count` that are this process's."""
        each, more = divmod(count, self.size)
        start = self.rank * each + min(self.rank, more)
        return slice(start, start + each + (self.rank < more))

    @contextmanager
    def averaging(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Within, `optimizer` uses the gradient of the whole batch. All start with the parameters of rank 0."""
        if self.size == 1:
            yield
            return
        for value in model.state_dict().values():
            copy = value.contiguous()  # channels_last parameters are not, and nccl asks for it
            with self._contact():
                dist.broadcast(copy, src=0)
            value.copy_(copy)

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            del args, kwargs
            self._sum_gradients([p for group in optimizer.param_groups for p in group["params"]])

        handle = optimizer.register_step_pre_hook(before)
        try:
            yield
        finally:
            handle.remove()

    def sums(
        self, values: Mapping[str, float], names: tuple[str, ...] | None = None
    ) -> dict[str, float]:
        """Sums over the processes of named numbers; a process without a name in `names` counts it as 0."""
        if self.size == 1:
            return dict(values)
        if names is None:
            names = tuple(
                dict.fromkeys(name for each in self.gather(list(values)) for name in each)
            )
        total = torch.tensor([values.get(name, 0.0) for name in names], dtype=torch.float64)
        total = total.to(_device())
        with self._contact():
            dist.all_reduce(total)
        return dict(zip(names, total.tolist(), strict=True))

    def average_statistics(self, model: nn.Module) -> None:
        """Make the buffers (running statistics of batch norm) their mean over the processes."""
        if self.size == 1:
            return
        with self._contact():
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    dist.all_reduce(buffer)
                    buffer /= self.size
                else:
                    dist.broadcast(buffer, src=0)

    def gather(self, value: T) -> list[T]:
        """What every process gives here, in the order of their numbers."""
        if self.size == 1:
            return [value]
        every: list[Any] = [None] * self.size
        with self._contact():
            dist.all_gather_object(every, value)
        return every

    def agree(self, act: Callable[[], T]) -> T:
        """What `act` gives in this process.

        Raises:
            ValueError: `act` raised one here or in any other process, so that none goes on alone.

        Example:
            >>> World().agree(lambda: 1 + 1)
            2
        """
        results, error = [], ""
        try:
            results.append(act())
        except ValueError as problem:
            error = str(problem)
        errors = [each for each in self.gather(error) if each]
        if errors:
            raise ValueError(errors[0])
        return results[0]

    @contextmanager
    def one_then_all(self) -> Iterator[None]:
        """Process 0 goes through alone, then the others: what it downloads, they find on the disk."""
        if self.rank:
            self.wait()
        yield
        if not self.rank:
            self.wait()

    def wait(self) -> None:
        """Until every process has come here."""
        if self.size > 1:
            with self._contact():
                dist.barrier()

    @contextmanager
    def _contact(self) -> Iterator[None]:
        """Where processes exchange something; that one of them has died is said in words."""
        try:
            yield
        except RuntimeError as error:
            raise ConnectionError(
                f"process {self.rank} of {self.size} lost contact with another one, which has died or cannot "
                f"be reached; start the same command again with --resume ({str(error).strip()[:120]})"
            ) from error

    def _sum_gradients(self, parameters: list[Tensor]) -> None:
        # One message: all gradients, and for each parameter how many processes have one. A process whose share
        # of the batch is empty has none.
        wide = any(p.dtype == torch.float64 for p in parameters)
        dtype = torch.float64 if wide else torch.float32
        parts = [
            torch.zeros(p.numel(), dtype=dtype, device=p.device)
            if p.grad is None
            else p.grad.flatten().to(dtype) * self.share
            for p in parameters
        ]
        present = [float(p.grad is not None) for p in parameters]
        flags = torch.tensor(present, dtype=dtype, device=parameters[0].device)
        message = torch.cat([*parts, flags])
        with self._contact():
            dist.all_reduce(message)
        count = len(parameters)
        pieces = message[:-count].split([p.numel() for p in parameters])
        for p, piece, flag in zip(parameters, pieces, message[-count:].tolist(), strict=True):
            p.grad = piece.reshape(p.shape).to(p.dtype) if flag > 0 else None


def _device() -> torch.device:
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
