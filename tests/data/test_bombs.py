"""Small files that say they are large: refused by what they say, before they are unpacked."""

import gzip
import io
import struct
import time
import zipfile
import zlib

import numpy as np
import pytest

from saddlepoint import data
from saddlepoint.data import formats, own


def header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, described)
    return buffer.getvalue()


@pytest.fixture
def bomb(tmp_path):
    """About 1 MB that unpacks to 1.2 GB: 1,500 black images of 512 x 512 in colour."""
    path, shape = tmp_path / "bomb.npz", (1500, 512, 512, 3)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("images.npy", "w", force_zip64=True) as member:
            member.write(header(shape))
            zeros = bytes(512 * 512 * 3 * 100)
            for _ in range(15):
                member.write(zeros)
        labels = np.zeros(1500, np.int64)
        buffer = io.BytesIO()
        np.save(buffer, labels)
        archive.writestr("labels.npy", buffer.getvalue())
    assert path.stat().st_size < 1_500_000
    return path


def test_an_npz_that_unpacks_to_gigabytes(bomb):
    start = time.process_time()  # what others do on the machine does not count
    with pytest.raises(
        ValueError, match=r"must not unpack to far more .* got 1.2 GB out of 1.\d MB"
    ):
        own.npz(bomb, limit=4)
    assert time.process_time() - start < 2


def test_an_npz_whose_header_says_more_than_there_is(tmp_path):
    path = tmp_path / "liar.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header((10**6, 10**6)) + b"x")
        archive.writestr("labels.npy", header((10**6,), "<i8"))
    with pytest.raises(ValueError, match=r"must be as long as it says, got 129 bytes for 10{12}"):
        own.npz(path)
    with path.open("rb") as file, pytest.raises(ValueError, match="not a readable npz file"):
        formats.read_npz(file)


def test_honest_files_pass_however_well_they_pack(tmp_path):
    path = tmp_path / "black.npz"
    images = np.zeros((100, 64, 64), np.uint8)
    images[0, 0, 0] = 255
    np.savez_compressed(path, images=images, labels=np.zeros(100, np.int64))
    assert own.npz(path).images.shape == (100, 1, 64, 64)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + crc

    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_a_picture_that_says_it_has_very_many_pixels(tmp_path, side):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(png(side, side))
    with pytest.raises(ValueError, match=r"1.png` must be an image, got Image size \(\d+ pixels\)"):
        data.folder(tmp_path)


def test_a_data_set_that_unpacks_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_MOST_IDX", 10_000)
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        (tmp_path / f"t10k-{kind}.gz").write_bytes(gzip.compress(bytes(100_000)))
    with pytest.raises(ValueError, match=r"unpacks to more than 10,000 bytes"):
        formats.decode("mnist", "test", tmp_path)
