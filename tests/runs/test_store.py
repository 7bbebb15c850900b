"""Pages and the lock: what is read back is what this run wrote, and nobody else writes meanwhile."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from children import Started, shared
from saddlepoint import files
from saddlepoint.evaluation import Page
from saddlepoint.files import DamagedFileError, read_tensors, write_tensors
from saddlepoint.runs import store as store_file
from saddlepoint.runs.store import LOCK, PAGES, Store, locked


def page(value: float = 1.0) -> Page:
    return Page({"x": torch.full((4, 3), value), "rows": torch.arange(4)}, seconds=0.25)


def test_a_page_comes_back_to_the_bit(tmp_path: Path) -> None:
    store = Store(tmp_path, "f")
    store.put("rows/0-4", page(0.1))
    found = store.get("rows/0-4")
    assert found is not None
    assert torch.equal(found.tensors["x"], torch.full((4, 3), 0.1))
    assert found.seconds == 0.25
    assert store.seconds() == 0.25
    assert len(store) == 1


def test_a_page_of_other_settings_is_never_read(tmp_path: Path) -> None:
    Store(tmp_path, "eps 0.1").put("rows/0-4", page(0.1))
    other = Store(tmp_path, "eps 0.3")
    assert other.get("rows/0-4") is None
    assert len(other) == 0
    assert other.seconds() == 0
    other.put("rows/0-4", page(0.3))
    found = other.get("rows/0-4")
    assert found is not None
    assert found.tensors["x"][0, 0] == torch.tensor(0.3)


def test_every_flipped_byte_of_the_data_is_noticed_and_the_page_named(tmp_path: Path) -> None:
    store = Store(tmp_path, "f")
    store.put("rows/0-4", page())
    (path,) = (tmp_path / PAGES).iterdir()
    whole = path.read_bytes()
    data = range(len(whole) - 4 * 3 * 4 - 4 * 8, len(whole))
    for place in data:
        broken = bytearray(whole)
        broken[place] ^= 1
        path.write_bytes(broken)
        fresh = Store(tmp_path, "f")
        assert fresh.get("rows/0-4") is None
        assert fresh.damaged == [path.name]


@pytest.mark.parametrize("place", range(0, 400, 7))
def test_a_flipped_byte_of_the_header_never_gives_other_content(tmp_path: Path, place: int) -> None:
    store = Store(tmp_path, "f")
    store.put("rows/0-4", page())
    (path,) = (tmp_path / PAGES).iterdir()
    broken = bytearray(path.read_bytes())
    broken[place % len(broken)] ^= 1
    path.write_bytes(broken)
    found = Store(tmp_path, "f").get("rows/0-4")
    if found is not None:  # a byte that means nothing, such as padding
        assert torch.equal(found.tensors["x"], torch.ones(4, 3))
        assert found.seconds == 0.25


def test_a_truncated_file_and_one_without_digest_are_damaged(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "x.safetensors"
    write_tensors(path, {"x": torch.ones(8)})
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DamagedFileError, match=r"x\.safetensors"):
        read_tensors(path)
    save_file({"x": torch.ones(8)}, path)
    with pytest.raises(DamagedFileError, match="digest"):
        read_tensors(path)
    with pytest.raises(FileNotFoundError):
        read_tensors(tmp_path / "none")


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real, opened = tmp_path / "x.safetensors", safetensors.safe_open, []
    write_tensors(path, {"x": torch.zeros(8)})

    def replaced_behind(name: object, **options: object) -> object:
        opened.append(name)
        if len(opened) == 1:
            write_tensors(path, {"x": torch.ones(8)})
            raise safetensors.SafetensorError("half of one file and half of another")
        return real(name, **options)

    monkeypatch.setattr(safetensors, "safe_open", replaced_behind)
    assert torch.equal(read_tensors(path).tensors["x"], torch.ones(8))
    assert len(opened) == 2


def test_foreign_files_and_links_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / PAGES).mkdir()
    (tmp_path / PAGES / "mine.txt").write_text("x")
    store = Store(tmp_path, "f")
    for act in (store.check, store.clear, lambda: store.put("k", page())):
        with pytest.raises(ValueError, match=r"mine\.txt"):
            act()
    assert (tmp_path / PAGES / "mine.txt").read_text() == "x"

    elsewhere = tmp_path / "elsewhere"
    Store(elsewhere, "f").put("k", page())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / PAGES).symlink_to(elsewhere / PAGES)
    with pytest.raises(ValueError, match="link"):
        Store(tmp_path / "run", "f").clear()
    assert len(Store(elsewhere, "f")) == 1


def test_the_folder_is_looked_through_once_however_many_pages_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: looks.append(self) or look(self))
    store = Store(tmp_path, "f")
    for number in range(5):
        store.put(f"page {number}", page())
    assert len(looks) <= 1
    assert len(store) == 5


def test_clear_removes_pages_of_all_settings_and_the_folder(tmp_path: Path) -> None:
    Store(tmp_path, "a").put("k", page())
    Store(tmp_path, "b").put("l", page())
    unfinished = f".k-0123456789abcdef.safetensors.{'deadbeef' * 4}"
    (tmp_path / PAGES / unfinished).write_text("half")
    Store(tmp_path, "a").clear()
    assert not (tmp_path / PAGES).exists()


def test_clear_leaves_files_that_are_only_called_like_pages(tmp_path: Path) -> None:
    store = Store(tmp_path, "a")
    store.put("k", page())
    plain, text, other = (tmp_path / PAGES / f"{n}-0123456789abcdef.safetensors" for n in "xyz")
    save_file({"mine": torch.ones(2)}, plain)
    text.write_text("mine")
    write_tensors(other, {"mine": torch.ones(2)}, {"format": "of somebody else"})
    before = {path: path.read_bytes() for path in (plain, text, other)}
    store.clear()
    assert {path: path.read_bytes() for path in (tmp_path / PAGES).iterdir()} == before


def test_pages_are_kept_apart_whatever_their_keys(tmp_path: Path) -> None:
    store = Store(tmp_path, "f")
    keys = [
        "A/linf/pgd/0/0",
        "a/linf/pgd/0/0",
        "A_linf_pgd_0_0",
        "x" * 500,
        "../../etc",
        "\x00",
        "",
    ]
    keys += ["</script><script>", '"><img src=x onerror=1>']
    for number, key in enumerate(keys):
        store.put(key, Page({"n": torch.tensor(number)}, seconds=0.25))
    found = [store.get(key) for key in keys]
    assert [int(page.tensors["n"]) for page in found if page is not None] == list(range(len(keys)))
    assert {path.parent for path in tmp_path.rglob("*.safetensors")} == {tmp_path / PAGES}
    assert store.get("never") is None


HOLD = """
import sys, time
from pathlib import Path
from saddlepoint.runs.store import locked
with locked(Path()):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(folder: Path) -> Iterator[Started]:
    process = shared().start(cwd=folder, patch=HOLD)
    try:
        process.wait_until(lambda: process.said() == "held\n")
        yield process
    finally:
        process.kill()


def test_a_second_process_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(ValueError, match=f"process {process.pid} on"), locked(tmp_path):
            pass
        assert (tmp_path / LOCK).is_file()  # the refused one has not removed it


def test_the_lock_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    with holder(tmp_path):
        pass  # killed at the end, without a chance to clean up
    assert (tmp_path / LOCK).is_file()
    with locked(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()
    assert not (tmp_path / LOCK).exists()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as whoever waits for a lock knows it: it passes while he sleeps."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(store_file, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def test_who_waits_is_told_once_for_whom(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def waited(seconds: float) -> None:
        clock[0] += seconds
        if clock[0] > 30:
            process.kill()

    with holder(tmp_path) as process:
        with (
            pytest.raises(ValueError, match="choose another folder"),
            locked(tmp_path, wait=1.5, waiting=told.append),
        ):
            pass
        assert (len(told), clock[0]) == (1, pytest.approx(1.5, abs=0.06))
        monkeypatch.setattr(store_file.time, "sleep", waited)
        with locked(tmp_path, wait=60, waiting=told.append):
            assert (len(told), clock[0]) == (2, pytest.approx(30, abs=0.06))
    for text in told:
        assert text.startswith(f"waiting for process {process.pid} on {platform.node()} (since ")
        assert text.endswith(f"), which is writing into {tmp_path}")


def test_nobody_waits_for_another_machine(tmp_path: Path, clock: list[float]) -> None:
    (tmp_path / LOCK).write_text('{"host": "elsewhere", "pid": 1, "since": "2026-01-01"}')
    told: list[str] = []
    with (
        pytest.raises(ValueError, match="process 1 on elsewhere"),
        locked(tmp_path, wait=60, waiting=told.append),
    ):
        pass
    assert clock == [0]
    assert not told


def test_the_lock_of_another_machine_is_refused_with_the_file_to_delete(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text('{"host": "elsewhere", "pid": 1, "since": "2026-01-01"}')
    with (
        pytest.raises(ValueError, match=r"process 1 on elsewhere.*delete .*run\.lock"),
        locked(tmp_path),
    ):
        pass
    assert (tmp_path / LOCK).is_file()


def test_a_lock_that_is_a_link_or_a_file_of_others_is_refused_and_kept(tmp_path: Path) -> None:
    folder, thesis = tmp_path / "run", tmp_path / "thesis.txt"
    folder.mkdir()
    thesis.write_text("mine")
    (folder / "run.lock").symlink_to(thesis)
    with (
        pytest.raises(ValueError, match=r"must be a lock of saddlepoint, got a link"),
        locked(folder),
    ):
        pass
    (folder / "run.lock").unlink()
    (folder / "run.lock").write_text("precious")
    with (
        pytest.raises(ValueError, match="must be a lock of saddlepoint, got another file"),
        locked(folder),
    ):
        pass
    assert (folder / "run.lock").read_text() == "precious"
    (folder / "run.lock").write_text("[" * 100_000)
    with (
        pytest.raises(ValueError, match="must be a lock of saddlepoint, got another file"),
        locked(folder),
    ):
        pass
    (folder / "run.lock").unlink()
    (folder / "run.lock").mkdir()
    with (
        pytest.raises(ValueError, match="must be a lock of saddlepoint, got a folder"),
        locked(folder),
    ):
        pass
    assert thesis.read_text() == "mine"


def test_what_keeps_the_lock_from_being_written_is_told_with_its_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as on a full disk
        with pytest.raises(OSError, match=r"run\.lock") as raised, locked(tmp_path / "run"):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == str(tmp_path / "run" / LOCK)
    assert not (tmp_path / "run" / LOCK).exists()


@pytest.mark.parametrize("out", ["link", "link/run"])
def test_a_folder_that_is_a_link_to_nothing_is_refused(out: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with (
        pytest.raises(ValueError, match=r"link` must be a folder, got a link to nothing; choose"),
        locked(tmp_path / out),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_many_processes_that_want_the_lock_have_it_one_at_a_time(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from saddlepoint.runs.store import locked
folder, inside = Path(), Path("inside")
done = 0
end = time.monotonic() + 200
while done < 15 and time.monotonic() < end:
    try:
        with locked(folder):
            with inside.open("x"):
                pass
            inside.unlink()
            done += 1
    except ValueError:
        time.sleep(0.001)
sys.exit(done != 15)
"""
    crowd = [shared().start(cwd=tmp_path, patch=code) for _ in range(3)]
    assert [process.wait() for process in crowd] == [0, 0, 0]


def test_a_stop_while_tensors_are_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch swallowed the signal of a process that was stopped, and its file was called damaged.
    path = tmp_path / "a.safetensors"
    files.write_tensors(path, {"a": torch.ones(3)})
    whole, failures = files._checked, [files.DamagedFileError("could not determine the shape")]

    def checked(path: Path) -> files.TensorFile:
        if failures:
            raise failures.pop()
        return whole(path)

    monkeypatch.setattr(files, "_checked", checked)
    with pytest.raises(KeyboardInterrupt):
        files.read_tensors(path)
    assert files.read_tensors(path).tensors["a"].sum() == 3
    failures += [files.DamagedFileError("first"), files.DamagedFileError("again")][::-1]
    with pytest.raises(files.DamagedFileError, match="again"):
        files.read_tensors(path)
