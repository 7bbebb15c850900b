"""Devices as users name them."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["device_of"]


def device_of(text: str) -> torch.device:
    """A device by its name; "gpu" is the one that is there, whatever torch calls it.

    Raises:
        ValueError: There is no such name, or no GPU.

    Example:
        >>> device_of("CPU")
        device(type='cpu')
    """
    name, colon, number = text.strip().lower().partition(":")
    if name == "gpu":
        there: dict[str, Callable[[], bool]] = {
            "cuda": torch.cuda.is_available,
            "mps": torch.backends.mps.is_available,
            "xpu": torch.xpu.is_available,
        }
        name = next((known for known, is_there in there.items() if is_there()), "")
        if not name:
            raise ValueError(
                f"`--device` must be one that is there, got {text!r}, and torch finds no GPU; use cpu."
            )
    try:
        return torch.device(f"{name}{colon}{number}")
    except RuntimeError as error:
        raise ValueError(
            f"`--device` must be cpu, gpu, cuda, mps or xpu, or one of several such as cuda:1, got {text!r}."
        ) from error
