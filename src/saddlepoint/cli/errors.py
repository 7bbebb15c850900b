"""What a user can mend becomes one line and exit code 2; what the library refuses, one line and 1."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "Failure",
    "LibraryError",
    "UsageError",
    "library",
    "one_line",
    "usage",
    "wants_traceback",
]

_EXPECTED = (ValueError, TypeError, OSError, ImportError, RuntimeError, ArithmeticError)


class Failure(Exception):  # noqa: N818  (the two kinds below carry the name)
    """Ends the program with one line on stderr."""

    code = 1


class UsageError(Failure):
    """The command, a file or a value is not right."""

    code = 2


class LibraryError(Failure):
    """The command was right, and the work failed."""

    code = 1


@contextmanager
def usage(**flags: str) -> Iterator[None]:
    """What goes wrong here is for the user to mend: reading settings, files, models, data.

    Args:
        flags: Arguments of the library that the user knows as flags, such as `path="--data"`.
    """
    try:
        yield
    except _EXPECTED as error:
        from saddlepoint.runs import texts

        raise UsageError(texts.renamed(one_line(error), flags)) from error


@contextmanager
def library() -> Iterator[None]:
    """What goes wrong here is the work itself, or the user's model, which may raise anything."""
    try:
        yield
    except (Failure, BrokenPipeError):
        raise
    except Exception as error:
        raise LibraryError(one_line(error)) from error


def one_line(error: BaseException) -> str:
    r"""The message of an error without line breaks; its type where there is no message.

    Example:
        >>> one_line(ValueError("`eps` must be positive,\n got -1."))
        '`eps` must be positive, got -1.'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"`{error.filename}`: {error.strerror.lower()}."
    text = " ".join(str(error).split())
    if not text:
        return type(error).__name__
    return text if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {text}"


def wants_traceback() -> bool:
    """Whether the user asked for Python's own report of errors."""
    return bool(os.environ.get("SADDLEPOINT_TRACEBACK"))
