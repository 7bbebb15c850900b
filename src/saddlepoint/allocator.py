"""Memory of large tensors: glibc returns it to the system and takes it again, unless told otherwise."""

from __future__ import annotations

import os
import sys

__all__ = ["keep_memory"]

# Of mallopt(3). No block has a mapping of its own, which would be returned when the tensor is gone; what is
# free at the end of the heap is not returned either; and the heap grows by 64 MB at a time.
_SETTINGS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_TOP_PAD": (-2, 64 * 2**20)}


def keep_memory() -> bool:
    """Let this process keep the memory of tensors that are gone for those to come, where the system is glibc's.

    By default glibc returns large blocks to the system, and the pages of the next tensor have to be made anew,
    which on a CPU takes time, most in adversarial training with large batches (docs/BENCHMARKS.md, allocation).
    With this call the process keeps what it needed at most until it ends. The command line calls this before
    it works; in a program or notebook of your own call it once, before the first large tensor. Importing the
    library does not.

    Nothing happens on other systems, and where the environment tells glibc what to do: a variable that begins
    with MALLOC_, or `GLIBC_TUNABLES` that name malloc.

    Returns:
        Whether memory is kept from now on because of this call.

    Example:
        >>> import saddlepoint as sp
        >>> sp.keep_memory() in (True, False)  # True on Linux with glibc
        True
    """
    told = any(name.startswith("MALLOC_") for name in os.environ)
    if told or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return False
    taken = [library.mallopt(option, value) for option, value in _SETTINGS.values()]
    return all(taken)
