"""Pixels as numbers in [0, 1], however they are stored; what cannot be read rightly is refused.

A picture file says how deep its pixels are, and an array by its type: bool is 0 and 1, uint8 goes up to 255,
uint16 up to 65535, floats are taken as they are. Transparent pixels are shown on white, as on a page.
"""

from __future__ import annotations

import math
import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["encode_png", "from_array", "from_picture", "read_picture", "resized", "unit"]

_DEEP = ("I;16", "I;16B", "I;16L", "I;16N")
_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")
_PALETTE = ("P", "PA")
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")


def unit(pixels: Tensor) -> Tensor:
    """8-bit pixels as float32 in [0, 1]; floats are left alone.

    Example:
        >>> unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    return pixels.to(torch.float32).div_(255) if pixels.dtype == torch.uint8 else pixels


def encode_png(pixels: Tensor) -> bytes:
    r"""A PNG file of 8-bit pixels, (C, H, W), with C = 1 grey, 3 RGB or 4 RGBA.

    Example:
        >>> encode_png(torch.zeros(1, 2, 2, dtype=torch.uint8))[:8]
        b'\x89PNG\r\n\x1a\n'
    """
    kinds = {1: 0, 3: 2, 4: 6}
    if pixels.dim() != 3 or pixels.shape[0] not in kinds or pixels.dtype != torch.uint8:
        raise ValueError(
            f"`pixels` must be uint8 of shape (C, H, W) with C in 1, 3, 4, got {pixels.dtype} "
            f"of shape {tuple(pixels.shape)}."
        )
    channels, height, width = pixels.shape
    lines = pixels.permute(1, 2, 0).reshape(height, width * channels)
    # Filter type 0 at the head of every line.
    raw = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), lines.cpu()], dim=1)
    header = struct.pack(">IIBBBBB", width, height, 8, kinds[channels], 0, 0, 0)
    body = zlib.compress(raw.contiguous().numpy().tobytes(), 9)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def from_array(array: NDArray[Any]) -> Tensor:
    """An array of pixels as float32 in [0, 1], scaled by its type.

    Raises:
        ValueError: The type has no scale, values lie outside it, or two scales are possible: whole numbers
            of which none is above 1 may be 8-bit and nearly black, or mean 0 and 1.

    Example:
        >>> from_array(np.array([True, False])), from_array(np.array([65535], np.uint16))
        (tensor([1., 0.]), tensor([1.]))
    """
    kind, low, high = array.dtype.kind, *_range(array)
    if kind == "b":
        return torch.from_numpy(array.astype(np.float32))
    if kind == "f":
        if not (low >= 0 and high <= 1):  # also catches NaN
            raise ValueError(
                f"`images` must be floats in [0, 1], got values from {low:g} to {high:g}; divide by what "
                "means white, and leave normalisation to the model."
            )
        return torch.from_numpy(array.astype(np.float32))
    if kind not in "iu":
        raise ValueError(f"`images` must be numbers, got {array.dtype}.")
    # By kind and size: a big-endian >u2 is not equal to np.uint16.
    top = 65535 if kind == "u" and array.dtype.itemsize == 2 else 255
    if low < 0 or high > top:
        raise ValueError(
            f"`images` of type {array.dtype} must be from 0 to {top}, got values from {low:g} to {high:g}; "
            "save them as floats in [0, 1]."
        )
    if high == 1:
        raise ValueError(
            f"`images` of type {array.dtype} must not be all between 0 and 1, which may mean nearly black or "
            "white, got just that; save them as bool or as floats."
        )
    if top == 65535 and 0 < high <= 255:
        raise ValueError(
            f"`images` of type uint16 must use more than 8 bits, got values up to {high:g}; save them as uint8."
        )
    return torch.from_numpy(array.astype(np.float32)).div_(top)


def read_picture(file: Path) -> Tensor:
    """One picture, turned as its camera says.

    Grey pictures of 1 and 8 bits, colour, palettes and CMYK (without colour management) come as 8 bits;
    16-bit grey and floats come as float32. 16-bit colour is read with 8 bits.

    Returns:
        (C, H, W), C = 1 for grey, also where a palette gives it, and 3 for colour; uint8, or float32 in [0, 1].

    Raises:
        ValueError: Not a picture, several in one, more pixels than Pillow takes for honest (89 million), or
            pixels whose scale is not known; names the file.
    """
    from PIL import Image, ImageOps

    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
            # A small file that says it has very many pixels: Pillow warns, and unpacks it.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(file)
        with opened:
            # Cameras put a thumbnail behind the photograph and call the file MPO.
            frames = 1 if opened.format == "MPO" else int(getattr(opened, "n_frames", 1))
            kind, picture = opened.format, ImageOps.exif_transpose(opened)
    except (OSError, SyntaxError, ValueError, *bombs) as error:
        raise ValueError(f"`{file}` must be an image, got {_reason(error)}.") from error
    if frames > 1:
        raise ValueError(f"`{file}` must be one picture, got {frames} in one file.")
    return _pixels(str(file), picture, known_depth=kind in ("PNG", "PPM"))


def from_picture(picture: Image.Image) -> Tensor:
    """A picture of PIL as `read_picture` reads it from a file, (C, H, W), uint8, or float32 in [0, 1]."""
    return _pixels("picture", picture, known_depth=False)


def resized(pixels: Tensor, size: int, crop: float = 1.0) -> Tensor:
    """The shorter side brought to size / crop by a bilinear filter that averages, then the centre of that.

    Args:
        pixels: (C, H, W) or (N, C, H, W), uint8 or float; the type stays.
        size: Of both sides.
        crop: Share of the shorter side that is kept, in (0, 1].

    Example:
        >>> resized(torch.zeros(3, 20, 40), 10).shape
        torch.Size([3, 10, 10])
    """
    height, width = pixels.shape[-2:]
    edge = max(size, math.floor(size / crop + 1e-6))  # as timm rounds it
    scale = edge / min(height, width)
    sides = [max(edge, round(side * scale)) for side in (height, width)]
    images = pixels if pixels.dim() == 4 else pixels[None]
    big = F.interpolate(images, sides, mode="bilinear", antialias=True).reshape(
        *pixels.shape[:-2], *sides
    )
    top, left = (sides[0] - size) // 2, (sides[1] - size) // 2
    return big[..., top : top + size, left : left + size]


def _pixels(file: str, picture: Image.Image, *, known_depth: bool) -> Tensor:
    mode, clear = picture.mode, "transparency" in picture.info
    if mode in _DEEP or (mode == "I" and known_depth):
        if clear:
            raise ValueError(
                f"`{file}` must not have a transparent value, which is not supported for 16 bits, got one."
            )
        return torch.from_numpy(np.asarray(picture).astype(np.float32))[None].div_(65535)
    if mode == "I":
        raise ValueError(
            f"`{file}` must have pixels of known depth, got 32-bit integers; save it with 8 or 16 bits."
        )
    if mode == "F":
        values = np.asarray(picture).astype(np.float32)
        low, high = _range(values)
        if not (low >= 0 and high <= 1):
            raise ValueError(f"`{file}` must hold floats in [0, 1], got {low:g} to {high:g}.")
        return torch.from_numpy(values)[None]
    if mode not in _GREY + _COLOUR:
        raise ValueError(f"`{file}` must be grey, RGB, palette or CMYK, got mode {mode}.")
    if mode in _ALPHA or clear:
        picture = _on_white(picture)
    final = "L" if mode in _GREY else "RGB"
    array = np.array(picture.convert(final))
    if mode in _PALETTE and bool((array == array[..., :1]).all()):
        array = array[..., 0]  # a palette of greys
    return torch.from_numpy(array.reshape(*array.shape[:2], -1)).permute(2, 0, 1).contiguous()


def _on_white(picture: Image.Image) -> Image.Image:
    from PIL import Image

    full = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", full.size, "white"), full).convert("RGB")


def _range(array: NDArray[Any]) -> tuple[float, float]:
    """The smallest and largest value; nothing for what has no order."""
    if array.size == 0 or array.dtype.kind not in "biuf":
        return 0.0, 0.0
    return float(array.min()), float(array.max())


def _reason(error: Exception) -> str:
    """What Pillow says, without the name of the file, which is there already."""
    text = " ".join(str(error).split()).rstrip(".")
    return "a file that cannot be read as one" if "cannot identify" in text else text


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
