"""Runs under torchrun: join the other processes, and say so where one of them is lost."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import LibraryError, one_line

__all__ = ["first_process_first", "joined", "meet", "processes"]


@contextmanager
def joined() -> Iterator[int]:
    """Within, the processes that torchrun started work together; yields the number of this one.

    Without torchrun there is one process, number 0. The backend is nccl where every process has a GPU, else
    gloo. Only process 0 shows progress and results; errors come from every process that has one.
    """
    if processes() == 1:
        yield 0
        return
    import torch
    import torch.distributed as dist

    local = int(os.environ.get("LOCAL_RANK", "0"))
    gpu = torch.cuda.device_count() > local
    if gpu:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank = dist.get_rank()
    try:
        yield rank
    except RuntimeError as error:
        if _is_lost_contact(error):
            raise LibraryError(
                f"process {rank} of {dist.get_world_size()} lost contact with another one, which has died "
                f"or cannot be reached; start the same command again with --resume ({one_line(error)[:120]})"
            ) from error
        raise
    finally:
        if sys.exc_info()[0] is None:  # waiting for a lost process would take forever
            dist.destroy_process_group()


def processes() -> int:
    """How many processes torchrun has started, on all machines; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


@contextmanager
def first_process_first(rank: int) -> Iterator[None]:
    """Process 0 goes through alone, then the others: what it downloads, they find on the disk."""
    if rank != 0:
        meet()
    yield
    if rank == 0:
        meet()


def meet() -> None:
    """Wait until every process has come here."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def _is_lost_contact(error: RuntimeError) -> bool:
    import torch.distributed as dist

    lost = ("closed by peer", "reset by peer", "timed out", "gloo", "nccl", "broken pipe")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in lost)
