"""Runs under torchrun: join the other processes, and say so where one of them is lost."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from .errors import LibraryError

__all__ = ["joined", "processes"]


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
    # Shares of the work may take hours longer in one process than in another. A process that has died is
    # noticed at once all the same: its connections are closed.
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(days=7))
    rank = dist.get_rank()
    try:
        yield rank
    except ConnectionError as error:  # says which process has lost which
        raise LibraryError(str(error)) from error
    finally:
        if sys.exc_info()[0] is None:  # waiting for a lost process would take forever
            dist.destroy_process_group()


def processes() -> int:
    """How many processes torchrun has started, on all machines; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
