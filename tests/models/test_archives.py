"""`.pt2` files of a stranger: whatever is in them, loading one runs nothing of theirs."""

import json
import pickle
import warnings
import zipfile

import pytest
import torch
from torch import nn

from saddlepoint import models
from saddlepoint.models.archives import safe_archive
from stand_ins import Trap

CONSTANTS = "data/constants/model_constants_config.json"
TENSOR = {
    "dtype": 7,
    "sizes": [{"as_int": 1}],
    "requires_grad": False,
    "device": {"type": "cpu", "index": None},
    "strides": [{"as_int": 1}],
    "storage_offset": {"as_int": 0},
    "layout": 7,
}


class Fancy(nn.Module):
    """Constants, buffers, sizes computed from the batch, several results."""

    def __init__(self):
        super().__init__()
        self.constant = torch.arange(3.0)
        self.linear = nn.Linear(4, 3)
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x):
        doubled = torch.cat([x, x]).flatten(1)
        logits = self.linear(doubled[: x.shape[0]]) + self.constant + self.shift
        return {"logits": logits + torch.tensor([1.0, 2.0, 3.0]), "count": logits.sum(1)}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("good") / "good.pt2"
    shapes = ({0: torch.export.Dim.AUTO},)
    network = Fancy().eval()
    torch.export.save(
        torch.export.export(network, (torch.rand(2, 1, 2, 2),), dynamic_shapes=shapes), path
    )
    return path, network


@pytest.fixture
def forge(good, tmp_path):
    """Writes a copy of a good file with members added, replaced, or there twice."""

    def write(changed=(), added=()):
        path = tmp_path / "bad.pt2"
        with zipfile.ZipFile(good[0]) as source, zipfile.ZipFile(path, "w") as target:
            for name in source.namelist():
                short = name.partition("/")[2]
                target.writestr(name, dict(changed).get(short, source.read(name)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of two members of one name
                for short, content in added:
                    target.writestr(short if short.startswith("/") else f"good/{short}", content)
        return path

    return write


@pytest.fixture
def sprung(tmp_path):
    """Files that exist if code of an archive ran."""
    made = [tmp_path / "sprung"]
    yield made[0]
    assert not any(path.exists() for path in made)


def refused(path, message):
    with pytest.raises(ValueError, match=message):
        models.load(path)


def unpickled_by_name(sprung):
    """A list of constants, and the member it names, which torch unpickles whatever the list says."""
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False}
    content = pickle.dumps(Trap(sprung))
    content += bytes(-len(content) % 4)  # as long as a whole number of floats
    listed = json.dumps({"config": {"x": {**entry, "tensor_meta": TENSOR}}})
    return listed, ("data/constants/opaque_obj_0", content)


def member(path, name):
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(f"good/{name}"))


def test_a_good_file_answers_as_the_network_does_for_any_number_of_images(good):
    path, network = good
    program = models.load(path)
    for count in (1, 5):
        x = torch.rand(count, 1, 2, 2, requires_grad=True)
        torch.testing.assert_close(program(x), network(x)["logits"])
        (ours,) = torch.autograd.grad(program(x)[:, 0].sum(), x)
        (theirs,) = torch.autograd.grad(network(x)["logits"][:, 0].sum(), x)
        torch.testing.assert_close(ours, theirs)


class TestTheFour:
    def test_a_constant_that_torch_unpickles_by_its_name(self, forge, sprung):
        config = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False}
        listed = json.dumps({"config": {"x": {**config, "tensor_meta": TENSOR}}})
        trap = ("data/constants/opaque_obj_0", pickle.dumps(Trap(sprung)))
        refused(
            forge([(CONSTANTS, listed)], [trap]), "a program and its tensors only, got .*opaque"
        )
        refused(forge([(CONSTANTS, listed)]), "must not hold pickled objects, got x")

    @pytest.mark.parametrize("name", ["serialized_state_dict.json", "serialized_constants.json"])
    def test_a_legacy_member_that_does_not_end_in_pt(self, tmp_path, sprung, name):
        path = tmp_path / "bad.pt2"
        with (tmp_path / "trap").open("wb") as file:
            torch.save(Trap(sprung), file)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("version", "8.20")
            archive.writestr("serialized_exported_program.json", "{}")
            archive.writestr(name, (tmp_path / "trap").read_bytes())
            archive.writestr("serialized_example_inputs.pt", b"")
        refused(path, "must hold a program and its tensors only, got 'version'")

    def test_a_second_list_that_python_and_torch_read_differently(self, forge, sprung):
        listed, trap = unpickled_by_name(sprung)
        harmless = json.dumps({"config": {}})
        path = forge([(CONSTANTS, listed)], [(CONSTANTS, harmless), trap])  # torch takes the first
        refused(path, "must have one member of each name, got two 'data/constants/model_constants")
        other_folder = forge(added=[("/good2/" + CONSTANTS, harmless)])
        refused(other_folder, "must hold a program and its tensors only|one member of each name")

    def test_a_compiled_library(self, forge, sprung):
        path = forge(added=[("data/aotinductor/model/x.so", b"\x7fELF")])
        refused(path, "must hold a program and its tensors only, got .*aotinductor/model/x.so")


class TestMore:
    def test_sample_inputs_are_not_even_read(self, forge, sprung, good, tmp_path):
        with (tmp_path / "trap").open("wb") as file:
            torch.save(Trap(sprung), file)
        path = forge([("data/sample_inputs/model.pt", (tmp_path / "trap").read_bytes())])
        x = torch.rand(2, 1, 2, 2)
        torch.testing.assert_close(models.load(path)(x), good[1](x)["logits"])

    def test_pickled_tensors(self, forge, sprung):
        listed = {"path_name": "tensor_0", "use_pickle": True, "tensor_meta": TENSOR}
        changed = [(CONSTANTS, json.dumps({"config": {"x": listed}}))]
        refused(forge(changed), "must not hold pickled objects, got x")
        refused(forge(added=[("data/weights/model.pt", b"")]), "got 'good/data/weights/model.pt'")

    @pytest.mark.parametrize(
        "target",
        [
            "torch.os.system",
            "torch.hub.load",
            "torch.load",
            "torch.ops.aten.from_file.default",
            "torch.ops.aten.save.default",
            "torch.ops.load_library",
            "_operator.attrgetter",
            "_operator.call",
            "math.__loader__",
            "#x",
            "torch.ops.aten.add.Tensor\nimport os",
        ],
    )
    def test_operators_are_those_on_tensors(self, good, forge, sprung, target):
        program = member(good[0], "models/model.json")
        program["graph_module"]["graph"]["nodes"][0]["target"] = target
        path = forge([("models/model.json", json.dumps(program))])
        refused(path, "got an operator that is not on tensors")

    def test_sizes_are_not_evaluated(self, good, forge, sprung):
        program = json.dumps(member(good[0], "models/model.json"))
        code = f"__import__('pathlib').Path('{sprung}').touch()"
        begin = program.index('"expr_str": "') + len('"expr_str": "')
        end = program.index('"', begin)
        path = forge([("models/model.json", program[:begin] + code + program[end:])])
        refused(path, "got a size that is no size")
        other = program[:begin] + "Symbol.mro" + program[end:]
        refused(forge([("models/model.json", other)]), "got a size that is no size")

    def test_names_are_names(self, good, forge, sprung):
        program = json.dumps(member(good[0], "models/model.json"))
        evil = f"x = __import__('pathlib').Path('{sprung}').touch()"
        for name in ("linear", "x"):
            changed = program.replace(f'"name": "{name}"', f'"name": "{evil}"')
            assert changed != program
            refused(forge([("models/model.json", changed)]), "got the text")

    def test_guards_are_left_out(self, good, forge, sprung):
        program = member(good[0], "models/model.json")
        program["guards_code"] = [f"__import__('pathlib').Path('{sprung}').touch()"]
        x = torch.rand(2, 1, 2, 2)
        loaded = models.load(forge([("models/model.json", json.dumps(program))]))
        torch.testing.assert_close(loaded(x), good[1](x)["logits"])

    def test_structures_are_plain(self, good, forge, sprung):
        program = json.dumps(member(good[0], "models/model.json"))
        changed = program.replace("builtins.dict", "os.system")
        assert changed != program
        refused(forge([("models/model.json", changed)]), "got the text")

    def test_compressed_members_are_refused(self, good, tmp_path):
        path = tmp_path / "bomb.pt2"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("good/data/weights/weight_0", bytes(10_000_000))
        refused(path, "must not be compressed, got 'data/weights/weight_0'")

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"sizes": [{"as_int": 10**12}]}, "more numbers than its 12 bytes can hold"),
            ({"sizes": [{"as_int": 10**6}] * 2, "strides": [{"as_int": 0}] * 2}, "more numbers"),
            ({"sizes": [{"as_int": -1}]}, "sizes that are no whole numbers"),
            ({"sizes": [{"as_int": True}]}, "sizes that are no whole numbers"),
            ({"sizes": [{"as_expr": {"expr_str": "s0", "hint": None}}]}, "no whole numbers"),
            ({"strides": {"as_int": 1}}, "sizes that are no whole numbers"),
            ({"storage_offset": None}, "sizes that are no whole numbers"),
            ({"device": {"type": "x = __import__('os')", "index": None}}, "got the text"),
        ],
    )
    def test_what_the_lists_say_of_tensors_is_checked(self, good, forge, changed, message):
        listed = member(good[0], CONSTANTS)
        name = next(n for n, e in listed["config"].items() if e["path_name"] == "tensor_0")
        listed["config"][name]["tensor_meta"].update(changed)
        refused(forge([(CONSTANTS, json.dumps(listed))]), message)

    def test_a_tensor_without_bytes_has_no_numbers(self, good, forge):
        listed = member(good[0], CONSTANTS)
        for entry in listed["config"].values():
            entry["tensor_meta"]["sizes"] = [{"as_int": 2**40}]
        empty = [(f"data/constants/{e['path_name']}", b"") for e in listed["config"].values()]
        refused(forge([(CONSTANTS, json.dumps(listed)), *empty]), "more numbers than its 0 bytes")

    def test_names_in_the_lists_are_names(self, good, forge):
        listed = member(good[0], CONSTANTS)
        listed["config"]["x = __import__('os')"] = next(iter(listed["config"].values()))
        refused(forge([(CONSTANTS, json.dumps(listed))]), "got the text")

    def test_what_is_missing_is_named(self, tmp_path):
        path = tmp_path / "less.pt2"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("good/archive_format", "pt2")
        refused(path, "got one without 'models/model.json'; save it with torch.export.save")


@pytest.mark.parametrize("name", ["mnist-b", "mnist-c", "cifar10-d"])
def test_shipped_networks_survive(name, tmp_path):
    network, card = models.load(name), models.card(name)
    x = torch.rand(3, card.channels, card.size, card.size)
    shapes = ({0: torch.export.Dim.AUTO},)
    exported = torch.export.export(network, (x,), dynamic_shapes=shapes)
    torch.export.save(exported, tmp_path / "net.pt2")
    assert len(safe_archive(tmp_path / "net.pt2").getvalue()) > 1000
    torch.testing.assert_close(models.load(tmp_path / "net.pt2")(x), network(x))
