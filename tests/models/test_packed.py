"""Networks outside the wheel: bits, folders, hashes, and what is said where there are none."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

import saddlepoint as sp
from commands import inside
from saddlepoint.data.splits import rows_of
from saddlepoint.models import loading
from saddlepoint.models.packed import IN_A_CHECKOUT, pack, unpack

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("bits", [8, 16])
def test_entries_come_back_as_near_as_the_bits_allow(bits: int) -> None:
    generator = torch.Generator().manual_seed(0)
    filters = (
        torch.randn(5, 3, 4, 4, generator=generator)
        * torch.tensor([1e-3, 1, 50, 0, 7])[:, None, None, None]
    )
    given = {"f": filters, "b": torch.randn(5, generator=generator), "n": torch.tensor(7)}
    small = pack(given, bits)  # type: ignore[arg-type]
    back = unpack(small)
    assert set(back) == set(given)
    assert torch.equal(back["b"], given["b"])
    assert torch.equal(back["n"], given["n"])
    error = (back["f"].float() - filters).abs().flatten(1).amax(dim=1)
    largest = filters.abs().flatten(1).amax(dim=1)
    assert bool((error <= largest * (0.5 / 127 if bits == 8 else 2.0**-11) * 1.001).all())
    kept = sum(t.numel() * t.element_size() for n, t in small.items() if n.startswith("f"))
    assert kept <= filters.numel() * bits / 8 + 4 * 5


def test_int8_entries_without_a_scale_are_left_alone() -> None:
    table = {"a": torch.ones(2, 2, dtype=torch.int8), "b.scale": torch.ones(2)}
    assert unpack(table) is table


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The folder of a training, with the parameters of mnist-c."""
    folder = tmp_path / "run"
    folder.mkdir()
    for suffix in ("json", "safetensors"):
        content = (loading._folder() / f"mnist-c.{suffix}").read_bytes()
        (folder / f"model.{suffix}").write_bytes(content)
    return folder


@pytest.mark.parametrize("bits", [8, 16])
def test_a_packed_network_is_found_checked_and_as_good(
    bits: int,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = tmp_path / "weights"
    x, y = sp.data.sample("mnist", 200)
    monkeypatch.setattr("saddlepoint.data.load", lambda *args, **flags: (x, y))
    words = ("models", "pack", trained, "mnist-h", "--out", weights, "--bits", bits)
    assert inside(*words) == 0
    assert "% right as it is kept" in capsys.readouterr().out
    size = (weights / "mnist-h.safetensors").stat().st_size
    assert size < (trained / "model.safetensors").stat().st_size * (bits / 32 + 0.05)
    assert "mnist-h" not in sp.models.shipped()
    monkeypatch.setenv("SADDLEPOINT_WEIGHTS", str(weights))
    assert "mnist-h" in sp.models.shipped()
    network = sp.models.load("mnist-h")
    assert next(network.parameters()).dtype == torch.float32
    before = sp.models.load("mnist-c")(x).argmax(dim=1)
    assert (network(x).argmax(dim=1) == before).double().mean() >= 0.99
    card = sp.models.card("mnist-h")
    right = 100 * (network(x).argmax(dim=1) == y).double().mean().item()
    assert (card.accuracy, card.test_images) == (pytest.approx(right, abs=0.01), 200)
    content = bytearray((weights / "mnist-h.safetensors").read_bytes())
    content[-1] ^= 1
    (weights / "mnist-h.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="SHA-256 of `mnist-h` must be"):
        sp.models.load("mnist-h")
    assert load_file(trained / "model.safetensors")


def test_what_is_in_the_package_goes_first(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in ("json", "safetensors"):
        (tmp_path / f"mnist-a.{suffix}").write_bytes((trained / f"model.{suffix}").read_bytes())
    monkeypatch.setenv("SADDLEPOINT_WEIGHTS", str(tmp_path))
    assert sp.models.card("mnist-a").architecture == "A"
    (tmp_path / "alone.safetensors").write_bytes(b"")  # no card beside it
    assert "alone" not in sp.models.shipped()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package alone, as from a wheel: no folder of larger networks."""
    monkeypatch.setattr("saddlepoint.models.packed._folders", list)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("name", "model", "in_a_checkout"),
    [
        ("cifar10-g", "G", False),
        ("cifar10-e", "E", True),
        ("cifar10-h", "H", True),
        ("cifar10-paper-a", "A_unshifted --recipe paper", True),
        ("cifar10-paper-b", "B_unshifted --recipe paper", False),
    ],
)
def test_a_network_of_the_paper_without_parameters_says_how_to_get_them(
    name: str, model: str, in_a_checkout: bool
) -> None:
    for call in (sp.models.load, sp.models.card):
        with pytest.raises(ValueError, match="must have parameters, got") as error:
            call(name)
        told = str(error.value)
        assert (
            f"`saddlepoint train --data cifar10 --model {model} --precision auto --out DIR`" in told
        )
        assert f"`saddlepoint models pack DIR {name} --out FOLDER`" in told
        assert "set SADDLEPOINT_WEIGHTS to that folder" in told
        assert ("checkout" in told) == in_a_checkout


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", ["cifar10-z", "cifar10-paper-e", "mnist-e"])
def test_what_is_no_network_of_the_paper_is_told_the_names(name: str) -> None:
    with pytest.raises(ValueError, match="`source` must be one of"):
        sp.models.load(name)
    with pytest.raises(ValueError, match="`name` must be one of"):
        sp.models.card(name)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("words", "argument"),
    [
        ("evaluate cifar10-g --threat linf:8/255", "--models"),
        ("attack ensemble --models cifar10-g", "--models"),
        ("attack ensemble --models A,G --data cifar10-sample", "--models"),
        ("attack ensemble --models A --victims G --data cifar10-sample", "--victims"),
    ],
)
def test_commands_say_of_it_what_the_library_says(
    words: str, argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="`source` must have parameters") as error:
        sp.models.load("cifar10-g")
    assert inside(*words.split(), "--out", tmp_path / "o") == 2
    expected = str(error.value).removesuffix(".").replace("`source`", f"`{argument}`")
    told = capsys.readouterr().err
    assert told.startswith(f"saddlepoint: {expected}")
    assert "did you mean" not in told


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_what_is_said_to_be_in_a_checkout_is_there() -> None:
    line = ["git", "ls-files", ":(glob)weights/*.safetensors"]
    tracked = subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {Path(file).stem for file in tracked.split()} <= IN_A_CHECKOUT
    assert {file.stem for file in (ROOT / "weights").glob("*.safetensors")} >= IN_A_CHECKOUT


def test_a_folder_that_is_no_training_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside("models", "pack", tmp_path, "cifar10-e", "--out", tmp_path) == 2
    assert "must hold model.safetensors and model.json" in capsys.readouterr().err
    assert json.dumps(sorted(p.name for p in tmp_path.iterdir())) == "[]"


def test_what_is_there_is_replaced_only_if_asked_and_only_if_it_is_a_network(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("saddlepoint.data.load", lambda *_, **__: sp.data.sample("mnist", 50))
    out = tmp_path / "weights"
    words = ("models", "pack", trained, "mnist-h", "--out", out)
    out.mkdir()
    for ending in ("safetensors", "json"):
        foreign = out / f"mnist-h.{ending}"
        foreign.write_text("mine")
        assert inside(*words) == 2
        assert "must not be there yet; add --overwrite" in capsys.readouterr().err
        assert inside(*words, "--overwrite") == 2
        assert "got files that are no network with a card" in capsys.readouterr().err
        assert [path.read_text() for path in out.iterdir()] == ["mine"]
        foreign.unlink()
    assert inside(*words) == 0
    large = (out / "mnist-h.safetensors").stat().st_size
    assert inside(*words, "--bits", 8) == 2
    assert (out / "mnist-h.safetensors").stat().st_size == large
    assert inside(*words, "--bits", 8, "--overwrite") == 0
    assert (out / "mnist-h.safetensors").stat().st_size < large
    # The training that it is made of is never replaced by it.
    whole = (trained / "model.safetensors").read_bytes()
    assert inside("models", "pack", trained, "model", "--out", trained, "--overwrite") == 2
    assert "got the network of the training itself" in capsys.readouterr().err
    assert (trained / "model.safetensors").read_bytes() == whole


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def with_card(folder: Path, **changes: object) -> None:
    card = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(card | changes))


def test_what_cannot_be_measured_leaves_everything_as_it_was(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    samples = {name: sp.data.sample(name, 20) for name in ("mnist", "cifar10")}
    monkeypatch.setattr(
        "saddlepoint.data.load", lambda name, *_, **__: samples[name.removesuffix("-sample")]
    )
    out = tmp_path / "weights"
    words = ("models", "pack", trained, "own", "--out", out)
    assert inside(*words) == 0
    before = contents(out)
    for limit in (0, -1):
        assert inside(*words, "--limit", limit, "--overwrite") == 2
        assert f"`--limit` must be positive, got {limit}" in capsys.readouterr().err
    with_card(trained, data="sets.py:ds")
    assert inside(*words, "--overwrite") == 2
    err = capsys.readouterr().err
    assert "`RUN` must be a training on one of mnist" in err
    assert "got one on sets.py:ds" in err
    with_card(trained, data="cifar10-sample")
    assert inside(*words, "--overwrite") == 2
    assert "must have images of the shape that the network takes" in capsys.readouterr().err
    assert contents(out) == before


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", ".hidden", "run\n"])
def test_a_name_is_no_path(
    name: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "weights"
    assert inside("models", "pack", trained, name, "--out", out, "--limit", 2) == 2
    assert "`NAME` must be of letters" in capsys.readouterr().err
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_another_training_is_not_replaced_nor_a_network_with_another_card(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in trained.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "run.json").write_text("{}")
    before = contents(other)
    words = ("models", "pack", trained, "model", "--out", other, "--overwrite")
    assert inside(*words) == 2
    assert "`--out` must not be the folder of a run" in capsys.readouterr().err
    (other / "run.json").unlink()
    (other / "model.safetensors").write_bytes(b"mine")
    assert inside(*words) == 2
    assert "got a network with the card of another" in capsys.readouterr().err
    before |= {"model.safetensors": b"mine"}
    before.pop("run.json")
    assert contents(other) == before


def test_a_packed_card_claims_only_what_was_measured_on_images_that_training_set_aside(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = {"threats": ["linf:0.3"], "quick": {"images": 5, "clean": 80.0, "union": 20.0}}
    with_card(trained, robust=judged, accuracy=12.34, data="mnist-sample")
    out = tmp_path / "weights"
    assert inside("models", "pack", trained, "own", "--out", out, "--limit", 8) == 0
    card = sp.models.Card.from_json((out / "own.json").read_text())
    assert card.robust is None
    x, y = sp.data.sample("mnist")
    rows = rows_of(y, "test", shuffle=False)[:8]
    right = 100 * (sp.models.load("mnist-c")(x[rows]).argmax(1) == y[rows]).double().mean()
    said = capsys.readouterr().out
    assert (
        f"of 8 test images {card.accuracy:.2f} % right as it is kept, {right:.2f} % before" in said
    )
    assert card.test_images == 8


def test_a_variable_that_names_no_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SADDLEPOINT_WEIGHTS", str(tmp_path / "nowhere"))
    with pytest.raises(
        ValueError, match=r"`SADDLEPOINT_WEIGHTS` must name a folder, got .*nowhere"
    ):
        sp.models.shipped()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SADDLEPOINT_WEIGHTS", "~")
    assert "mnist-a" in sp.models.shipped()


@pytest.fixture
def found(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of SADDLEPOINT_WEIGHTS with the network of the training, `own`, whose card a test may change."""
    folder = tmp_path / "found"
    folder.mkdir()
    for suffix in ("json", "safetensors"):
        (folder / f"own.{suffix}").write_bytes((trained / f"model.{suffix}").read_bytes())
    monkeypatch.setenv("SADDLEPOINT_WEIGHTS", str(folder))
    return folder


def with_own_card(folder: Path, **changes: object) -> None:
    card = json.loads((folder / "own.json").read_text())
    (folder / "own.json").write_text(json.dumps(card | changes))


@pytest.mark.parametrize("kind", ["file", "module", "folder", "npz"])
def test_no_text_of_a_card_is_imported_or_opened(
    kind: str, found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "it-ran"
    code = tmp_path / "evil.py"
    code.write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndataset = print\n")
    places = {"file": f"{code}:dataset", "module": "os:getcwd", "folder": str(tmp_path)}
    data = places.get(kind, str(tmp_path / "images.npz"))
    for field in ("data", "architecture", "command", "mean", "std"):
        with_own_card(found, **{field: data})
    assert inside("models", "check", "own") == 2
    assert inside("models", "list") == 0
    with_own_card(found, architecture="C", mean=None, std=None)
    capsys.readouterr()
    assert inside("models", "check", "own") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`own` must be a training on one of mnist" in line
    assert f"got one on {data}" in line
    assert not mark.exists()


def test_the_text_of_a_card_commands_no_terminal(
    found: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {name: f"{name}\x1b]0;owned\x07\nx" for name in ("command", "architecture", "data")}
    with_own_card(found, **words)
    assert not set("\x1b\x07\n") & set(repr(sp.models.card("own")))
    assert inside("models", "list") == 0
    out = capsys.readouterr().out
    assert "command ]0;owned  x" in out
    assert not set("\x1b\x07") & set(out)


@pytest.fixture
def sound(found: Path) -> None:
    """A network after `own`."""
    for suffix in ("json", "safetensors"):
        (found / f"sound.{suffix}").write_bytes((found / f"own.{suffix}").read_bytes())


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize(
    "robust", [5, "all", {"quick": 3}, {"quick": {}}, {"quick": {"images": 4, "union": "all"}}]
)
def test_a_card_with_a_verdict_that_is_none_is_named(
    robust: object, found: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_own_card(found, robust=robust)
    assert inside("models", "list") == 1
    *_, line, after = capsys.readouterr().out.splitlines()
    assert line.startswith("own              damaged card: `")
    assert "own.json` must be a model card with" in line
    assert "as robust" in line
    assert after.startswith("sound ")


@pytest.mark.parametrize("robust", [{}, {"paper": {"images": 4, "union": 1.5}}])
def test_a_card_that_the_quick_suite_has_not_judged_has_no_union(
    robust: object, found: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_own_card(found, robust=robust)
    assert inside("models", "list") == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("own ")]
    assert line.split()[4] == "-"


def test_a_card_is_compared_on_as_many_images_as_it_was_measured_on(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, y = sp.data.sample("mnist", 200)
    asked: list[int | None] = []

    def load(name: str, split: str, limit: int | None = None, **_: object) -> object:
        asked.append(limit)
        return x[:limit], y[:limit]

    monkeypatch.setattr("saddlepoint.data.load", load)
    out = tmp_path / "weights"
    assert inside("models", "pack", trained, "own", "--out", out, "--limit", 20) == 0
    monkeypatch.setenv("SADDLEPOINT_WEIGHTS", str(out))
    assert inside("models", "check", "own") == 0
    assert "agrees" in capsys.readouterr().out
    assert inside("models", "check", "own", "--limit", 7) == 0
    assert "agrees" not in capsys.readouterr().out
    with_own_card(out, test_images=201)  # more than there are
    assert inside("models", "check", "own") == 1
    assert "DIFFERS" in capsys.readouterr().out
    assert asked == [20, 20, 7, 201]
    for count in (0, -1, "all", None, True):
        with_own_card(out, test_images=count)
        assert inside("models", "check", "own") == 2
        assert "as test_images, got" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mnist-a", "cifar10-d"])
def test_the_name_of_a_network_inside_the_package_is_refused(
    name: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "weights"
    words = ("models", "pack", trained, name, "--out", out, "--limit", 2, "--overwrite")
    assert inside(*words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"got {name!r}" in line
    assert "inside the package" in line
    assert not out.exists()


def put(folder: Path, content: bytes) -> None:
    """Other parameters of `own`, with a card that has their hash."""
    (folder / "own.safetensors").write_bytes(content)
    with_own_card(folder, sha256=hashlib.sha256(content).hexdigest())


NAN, SCALE = float("nan"), "4.weight.scale"


@pytest.mark.parametrize(
    ("key", "change", "said"),
    [
        (SCALE, lambda _: None, "4.weight is of torch.int8, not of floating-point numbers"),
        (
            SCALE,
            lambda t: t[:1].clone(),
            r"4.weight.scale must be of .* shape \(16,\), got .*\(1,\)",
        ),
        (
            SCALE,
            lambda t: t.repeat(2),
            r"4.weight.scale must be of .* shape \(16,\), got .*\(32,\)",
        ),
        (
            SCALE,
            lambda t: t.to(torch.complex64),
            r"4.weight.scale must be of .* got torch.complex64",
        ),
        (SCALE, lambda t: t * NAN, "4.weight has entries that are not finite"),
        ("4.bias", lambda t: t * NAN, "4.bias has entries that are not finite"),
        ("4.bias", lambda t: t / 0, "4.bias has entries that are not finite"),
        ("4.bias", lambda t: t.bool(), "4.bias is of torch.bool, not of floating-point numbers"),
        ("4.bias", lambda t: t.to(torch.complex64), "4.bias is of torch.complex64"),
    ],
)
def test_damaged_parameters_with_a_hash_that_fits_are_refused(
    key: str, change: Callable[[torch.Tensor], torch.Tensor | None], said: str, found: Path
) -> None:
    tensors = pack(load_file(found / "own.safetensors"), 8)
    changed = change(tensors.pop(key))
    put(found, save(tensors if changed is None else tensors | {key: changed}))
    with pytest.raises(ValueError, match=f"`own`.*{said}"):
        sp.models.load("own")


def test_a_type_that_torch_lacks_is_refused(found: Path) -> None:
    about = {"2.bias": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [0, 2]}}
    header = json.dumps(about).encode()
    put(found, struct.pack("<Q", len(header)) + header + bytes(2))
    with pytest.raises(ValueError, match="`own` must be a safetensors file, got"):
        sp.models.load("own")


def test_whole_numbers_and_infinite_masks_are_no_damage() -> None:
    class Masked(torch.nn.BatchNorm1d):
        def __init__(self) -> None:
            super().__init__(2)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    state = Masked().state_dict()
    assert state["num_batches_tracked"].dtype == torch.int64
    loading.fill("masked", Masked(), state)


@pytest.mark.parametrize("architecture", ["A", "B", "E"])
def test_a_card_of_huge_images_takes_no_memory(architecture: str, found: Path) -> None:
    # 65536 x 65536 inputs of A would take 2.2 terabytes.
    with_own_card(found, architecture=architecture, size=65536)
    with pytest.raises(
        ValueError, match=f"`own` must hold the parameters of network {architecture}"
    ):
        sp.models.load("own")


def test_a_folder_called_like_a_file_of_parameters_is_no_network(found: Path) -> None:
    (found / "own.safetensors").unlink()
    (found / "own.safetensors").mkdir()
    assert "own" not in sp.models.shipped()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cifar10-e", {}),
        ("cifar10-e", {"data": "cifar10"}),
        ("cifar10-g", {"architecture": "G"}),
    ],
)
def test_a_network_of_the_paper_under_the_name_of_another_is_refused(
    name: str, changes: dict[str, str], found: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_own_card(found, **changes)
    for suffix in ("json", "safetensors"):
        (found / f"own.{suffix}").rename(found / f"{name}.{suffix}")
    got = f"{changes.get('architecture', 'C')} for {changes.get('data', 'mnist')}"
    said = (
        f"`{found}` must have network {name[-1].upper()} for cifar10 as {name}.safetensors, got {got} in the "
        f"card `{found / name}.json`; name both files after the network that they are of."
    )
    for call in (sp.models.load, sp.models.card):
        with pytest.raises(ValueError, match="must have network") as error:
            call(name)
        assert str(error.value) == said
    assert inside("models", "list") == 1
    assert said in capsys.readouterr().out
