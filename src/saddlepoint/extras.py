"""What to type where a package is missing that only some of the library needs."""

__all__ = ["install"]


def install(extra: str) -> str:
    """The line that installs the packages of an extra.

    Example:
        >>> install("timm")
        "pip install 'saddlepoint[timm]' (in a checkout: pip install '.[timm]')"
    """
    return f"pip install 'saddlepoint[{extra}]' (in a checkout: pip install '.[{extra}]')"
