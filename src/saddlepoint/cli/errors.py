"""What a user can mend becomes one line and exit code 2; work that fails, one line and 1."""

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from cyclopts import UnknownOptionError, UnusedCliTokensError

__all__ = [
    "Failure",
    "LibraryError",
    "UsageError",
    "data_taken",
    "library",
    "one_line",
    "usage",
    "usage_text",
    "usage_unless_models_raise",
    "wants_traceback",
    "with_suggestion",
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


_ABOUT_DATA = ("data", "models", "victims", "classes", "size", "crop", "split", "group-size")


@contextmanager
def data_taken(data: str, *, given: bool) -> Iterator[None]:
    """What goes wrong between models and images that the user has not named says so."""
    try:
        yield
    except Failure as error:
        flag = re.match(r"`--([\w-]+)`", str(error))
        if given or (flag is not None and flag[1] not in _ABOUT_DATA):
            raise
        told = str(error).rstrip(". ")
        raise type(error)(f"{told}; --data was not given, so {data} was taken.") from error


@contextmanager
def library() -> Iterator[None]:
    """What goes wrong here is the work itself, or the user's model, which may raise anything."""
    try:
        yield
    except (Failure, BrokenPipeError):
        raise
    except Exception as error:
        from saddlepoint.models.own_code import place_of

        raise LibraryError(one_line(error) + place_of(error)) from error


@contextmanager
def usage_unless_models_raise() -> Iterator[None]:
    """Settings are checked here, for the user to mend, and models may be asked; what they raise has a note."""
    with usage():
        try:
            yield
        except Exception as error:
            with library() if getattr(error, "__notes__", ()) else nullcontext():
                raise


def one_line(error: BaseException) -> str:
    r"""The message of an error without line breaks; its type where there is no message.

    Example:
        >>> one_line(ValueError("`eps` must be positive,\n got -1."))
        '`eps` must be positive, got -1.'
    """
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"`{error.filename}`: {error.strerror.lower()}."
    parts: list[str] = [str(error), *getattr(error, "__notes__", ())]
    text = " ".join("; ".join([*(each.rstrip(". ") for each in parts[:-1]), parts[-1]]).split())
    if not text:
        return type(error).__name__
    return text if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {text}"


def usage_text(error: Exception) -> str:
    """What the parser complains of; words that belong to no flag are mostly models."""
    if isinstance(error, UnknownOptionError):
        # The parser compares dashes too, by which short names are near each other.
        found = re.match(r"(Unknown option: --([\w-]+)\S*) Did you mean --([\w-]+)\?$", str(error))
        if found and not difflib.get_close_matches(found[2], [found[3]], n=1):
            return f"{found[1].rstrip('.')}; --help names those there are."
    if not isinstance(error, UnusedCliTokensError) or not error.unused_tokens:
        return str(error)
    words, attack = error.unused_tokens, (error.command_chain or ("",))[0] == "attack"
    remedy = f"models are named by --models {','.join(words)}" if attack else "see --help"
    return f"every word must belong to a flag, got {' and '.join(words)}; {remedy}."


# "`--data` must be one of mnist, cifar10, got 'minst'.": all complaints have this form.
_COMPLAINT = re.compile(r"must (?P<known>.*)(?:[,;] got (?P<got>'[A-Za-z][^'/\\\s]*'))", re.DOTALL)
_NEAR = 0.75


def with_suggestion(text: str) -> str:
    """A complaint about a name, with the known name that is nearest to it, if one is near.

    Example:
        >>> with_suggestion("`--data` must be one of mnist, cifar10, got 'minst'.")
        "`--data` must be one of mnist, cifar10, got 'minst'; did you mean mnist?"
    """
    found = _COMPLAINT.search(text)
    if found is None or text.endswith("?"):  # which suggests something
        return text
    got = found["got"].strip("'").partition(":")[0]
    known = {name.lower(): name for name in re.findall(r"[A-Za-z][\w+-]*", found["known"])}
    near = difflib.get_close_matches(got.lower(), known, n=1, cutoff=_NEAR)
    near = near or [name for name in known if sorted(name) == sorted(got.lower())]  # gup for gpu
    if not near or known[near[0]] == got:
        return text
    return f"{text.removesuffix('.')}; did you mean {known[near[0]]}?"


def wants_traceback() -> bool:
    """Whether the user asked for Python's own report of errors."""
    return bool(os.environ.get("SADDLEPOINT_TRACEBACK"))
