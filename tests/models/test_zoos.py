"""Networks of timm, torchvision and transformers, and ONNX files: real ones, built here, nothing downloaded."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import saddlepoint as sp
from commands import inside
from saddlepoint import data, models
from saddlepoint.calls import call
from saddlepoint.models.zoos import import_extra
from saddlepoint.runs import materials
from saddlepoint.runs.hashing import hash_model

pytestmark = pytest.mark.zoo


def extra(name):
    """The library, or a reason to skip."""
    try:
        return import_extra(name, "this test")
    except ImportError as error:
        pytest.skip(f"{error}; run it with make models")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No test may download anything."""
    import socket

    def refuse(*address, **options):
        raise AssertionError(f"a connection to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def images():
    x, y = data.sample("cifar10", limit=6)
    return materials.Images(x, y, data.class_names("cifar10"), "cifar10")


def load(word, images, **options):
    (model,) = materials.load_models([word], images, **options).values()
    assert not any(part.training for part in model.modules())
    assert hash_model(model)  # so that a run of it can be continued
    return model


def logits(model, x):
    with torch.no_grad():
        return call(model, x)


class TestTimm:
    @pytest.fixture
    def timm(self):
        return extra("timm")

    def test_a_name_is_a_network_with_timms_own_normalisation(self, timm, images):
        with pytest.warns(UserWarning, match="timm:test_resnet has random parameters"):
            model = load("timm:test_resnet", images)
        known = timm.get_pretrained_cfg("test_resnet")
        assert model.mean.flatten().tolist() == pytest.approx(known.mean)
        assert model.std.flatten().tolist() == pytest.approx(known.std)
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (known.mean, known.std))
        by_hand = model.network((images.x - mean) / std)
        assert torch.equal(logits(model, images.x), by_hand)
        assert by_hand.shape == (6, 10)  # as many as the data has classes
        with pytest.warns(UserWarning, match="random parameters"):
            again = load("timm:test_resnet", images)
        assert torch.equal(logits(again, images.x), by_hand)  # so that a run can be continued

    def test_images_of_one_channel_take_the_mean_of_timms_numbers(self, timm):
        x, y = data.sample("mnist", limit=6)
        grey = materials.Images(x, y, data.class_names("mnist"), "mnist")
        with pytest.warns(UserWarning, match="random parameters"):
            model = load("timm:test_resnet", grey)
        known = timm.get_pretrained_cfg("test_resnet")
        assert model.mean.flatten().tolist() == pytest.approx([sum(known.mean) / 3])
        assert model.std.flatten().tolist() == pytest.approx([sum(known.std) / 3])
        assert logits(model, x).shape == (6, 10)

    def test_parameters_of_ones_own_and_a_network_of_a_fixed_size(self, timm, images, tmp_path):
        torch.manual_seed(5)
        network = timm.create_model("test_vit", num_classes=7).eval()
        save_file(network.state_dict(), tmp_path / "mine.safetensors")
        model = load(f"{tmp_path / 'mine.safetensors'}:timm:test_vit", images, mean="half")
        side = timm.get_pretrained_cfg("test_vit").input_size[1]
        assert model.size == (side, side)
        big = torch.nn.functional.interpolate(
            images.x, (side, side), mode="bilinear", antialias=True
        )
        torch.testing.assert_close(logits(model, images.x), network((big - 0.5) / 0.5))

    def test_unknown_names(self, timm, images):
        with pytest.raises(
            ValueError,
            match=r"`timm:NAME` must be a network of timm, such as resnet18.*, got 'resnet18x'",
        ):
            load("timm:resnet18x", images)

    @pytest.mark.filterwarnings("ignore")
    def test_from_a_name_to_a_report(self, timm, tmp_path, capsys):
        words = ("--data", "cifar10-sample", "--eps", "8/255", "--steps", "3", "--limit", "8")
        named = ("--models", "timm:test_resnet,timm:test_vit", "--out", tmp_path / "out")
        assert inside("attack", "ensemble", *named, *words) == 0, capsys.readouterr().err
        assert "has random parameters" in capsys.readouterr().err
        record = json.loads((tmp_path / "out" / "run.json").read_text())
        assert record["domains"] == ["test_resnet", "test_vit"]
        assert (tmp_path / "out" / "report.html").is_file()


class TestTorchvision:
    def test_a_name_is_a_network(self, images):
        extra("torchvision.models")
        with pytest.warns(UserWarning, match="random parameters"):
            model = load("torchvision:squeezenet1_1", images)
        known = models.NORMALISATIONS["imagenet"]
        assert model.mean.flatten().tolist() == pytest.approx(known.mean)
        assert logits(model, images.x.repeat(1, 1, 2, 2)).shape == (6, 10)
        with pytest.raises(ValueError, match=r"must be a classifier such as .*got 'resnet19'"):
            load("torchvision:resnet19", images)


class TestTransformers:
    @pytest.fixture
    def folder(self, tmp_path):
        library = extra("transformers")
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = library.ViTConfig(
            **shape, intermediate_size=32, image_size=48, patch_size=8, num_labels=5
        )
        library.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
        processor = {
            "do_normalize": True,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "image_mean": [0.4, 0.5, 0.6],
            "image_std": [0.2, 0.25, 0.5],
            "size": {"height": 48, "width": 48},
            "image_processor_type": "ViTImageProcessor",
        }
        (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(processor))
        return tmp_path / "vit"

    def by_hand(self, folder, x, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.5)):
        network = extra("transformers").ViTForImageClassification.from_pretrained(folder).eval()
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (mean, std))
        big = torch.nn.functional.interpolate(x, (48, 48), mode="bilinear", antialias=True)
        with torch.no_grad():
            return network((big - mean) / std).logits

    def test_a_folder_is_a_network_with_its_image_processor(self, folder, images):
        model = load(f"hf:{folder}", images)
        torch.testing.assert_close(logits(model, images.x), self.by_hand(folder, images.x))

    def test_pixels_that_are_not_rescaled(self, folder, images):
        file = folder / "preprocessor_config.json"
        known = {**json.loads(file.read_text()), "do_rescale": False}
        known |= {"image_mean": [102.0, 127.5, 153.0], "image_std": [51.0, 63.75, 127.5]}
        file.write_text(json.dumps(known))
        found = logits(load(f"hf:{folder}", images), images.x)
        torch.testing.assert_close(found, self.by_hand(folder, images.x))

    def test_parameters_of_ones_own_and_another_normalisation(self, folder, images, tmp_path):
        library = extra("transformers")
        torch.manual_seed(9)
        config = library.AutoConfig.from_pretrained(folder)
        other = library.AutoModelForImageClassification.from_config(config).eval()
        torch.save(other.state_dict(), tmp_path / "other.pt")
        model = load(f"{tmp_path / 'other.pt'}:hf:{folder}", images, mean="half")
        other.save_pretrained(tmp_path / "second")
        expected = self.by_hand(tmp_path / "second", images.x, (0.5,) * 3, (0.5,) * 3)
        torch.testing.assert_close(logits(model, images.x), expected)

    def test_pickles_and_code_of_a_repository_are_not_loaded(self, folder, images, tmp_path):
        library = extra("transformers")
        network = library.ViTForImageClassification.from_pretrained(folder)
        torch.save(network.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        with pytest.raises(ValueError, match="an image classifier with parameters in safetensors"):
            load(f"hf:{folder}", images)
        sprung = tmp_path / "sprung"
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "mine.py").write_text(f"open({str(sprung)!r}, 'w')\nclass Mine: pass\n")
        with pytest.raises(ValueError, match="must hold an image classifier"):
            load(f"hf:{folder}", images)
        assert not sprung.exists()

    def test_a_folder_that_is_not_there(self, folder, images):
        with pytest.raises(ValueError, match="`hf:FOLDER` must be a folder that exists"):
            load("hf:./none", images)
        with pytest.raises(ValueError, match="or `hf:OWNER/NAME` a repository, got 'vti'"):
            load("hf:vti", images)  # asks no network


class TestOnnx:
    @pytest.fixture(params=[("old", 13), ("old", 17), ("new", 18), ("new", 20)], ids=str)
    def export(self, request, tmp_path):
        extra("onnx2pytorch")
        exporter, opset = request.param
        if exporter == "new":
            extra("onnxscript")

        def write(network, x, *, free=True):
            path = tmp_path / "net.onnx"
            options = {"opset_version": opset, "dynamo": exporter == "new"}
            if free and exporter == "new":
                options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
            elif free:
                options |= {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}
            torch.onnx.export(network, (x[:2],), path, verbose=False, **options)
            return path

        return write

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("name", ["mnist-b", "mnist-d"])
    def test_a_shipped_network_gives_the_same_logits_and_the_same_attack(self, export, name):
        network = models.load(name)
        x, y = data.sample("mnist", limit=12)
        path = export(network, x)
        images = materials.Images(x, y, data.class_names("mnist"), "mnist")
        model = load(str(path), images)
        torch.testing.assert_close(logits(model, x), logits(network, x), atol=1e-4, rtol=0)
        ours, theirs = (
            sp.attack(sp.Ensemble([each], x, y), sp.linf(0.1), steps=10)
            for each in (model, network)
        )
        assert ours.success.tolist() == theirs.success.tolist()
        torch.testing.assert_close(ours.delta, theirs.delta, atol=1e-4, rtol=0)

    @pytest.mark.filterwarnings("ignore")
    def test_shared_biases_and_batch_norm(self, export):
        torch.manual_seed(0)
        network = models.build("preact_resnet18", 3, 32).eval()
        x = torch.rand(4, 3, 32, 32)
        images = materials.Images(x, torch.zeros(4, dtype=torch.long), tuple("0123456789"), "")
        model = load(str(export(network, x)), images, mean="cifar10")
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in models.NORMALISATIONS["cifar10"])
        torch.testing.assert_close(
            logits(model, x), logits(network, (x - mean) / std), atol=1e-4, rtol=0
        )

    @pytest.mark.filterwarnings("ignore")
    def test_a_file_for_one_number_of_images(self, export):
        class Mixes(torch.nn.Module):
            def forward(self, v):
                return v.reshape(2, -1)[:, :10]

        x, y = data.sample("mnist", limit=4)
        images = materials.Images(x, y, data.class_names("mnist"), "mnist")
        path = export(Mixes().eval(), x, free=False)
        with pytest.raises(ValueError, match="must accept any number of images"):
            load(str(path), images)


class TestHostileOnnx:
    def test_text_is_refused(self, tmp_path, images):
        extra("onnx2pytorch")
        (tmp_path / "x.onnx").write_text("no model")
        with pytest.raises(ValueError, match="must be an ONNX file that onnx2pytorch can convert"):
            load(str(tmp_path / "x.onnx"), images)

    def test_parameters_outside_its_folder_are_not_read(self, tmp_path, images):
        extra("onnx2pytorch")
        onnx = extra("onnx")
        (tmp_path / "secret").write_bytes(bytes(40))
        tensor = onnx.TensorProto(name="w", data_type=1, dims=[10], data_location=1)
        tensor.external_data.add(key="location", value="../secret")
        take = onnx.helper.make_tensor_value_info("x", 1, ["b", 3, 32, 32])
        give = onnx.helper.make_tensor_value_info("y", 1, ["b", 10])
        node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
        graph = onnx.helper.make_graph([node], "g", [take], [give], [tensor])
        (tmp_path / "in").mkdir()
        file = tmp_path / "in" / "x.onnx"
        file.write_bytes(onnx.helper.make_model(graph).SerializeToString())
        with pytest.raises(ValueError, match=r"must be an ONNX file|outside|escapes|\.\."):
            load(str(file), images)


class TestSizes:
    """What pictures are brought to where nothing is said: what the network's own preprocessing says."""

    @pytest.fixture
    def photos(self, tmp_path):
        from PIL import Image

        generator = torch.Generator().manual_seed(3)
        for k, side in enumerate([(210, 170), (180, 260), (200, 200), (300, 190), (170, 171)]):
            (tmp_path / "photos" / f"class {k}").mkdir(parents=True)
            pixels = torch.rand(3, 4, 4, generator=generator)[None]
            large = torch.nn.functional.interpolate(pixels, side, mode="bicubic").clamp(0, 1)[0]
            array = (255 * large).byte().permute(1, 2, 0).numpy()
            Image.fromarray(array).save(tmp_path / "photos" / f"class {k}" / "1.png")
        return tmp_path / "photos"

    def answers(self, word, photos, out):
        words = ("--data", photos, "--models", word, "--eps", "1/255", "--steps", "1", "--out", out)
        assert inside("attack", "ensemble", *words) == 0
        settings = json.loads((out / "run.json").read_text())["settings"]
        return settings["size"], settings["crop"], load_file(out / "tensors.safetensors")

    @pytest.mark.filterwarnings("ignore")
    def test_timm(self, photos, tmp_path, capsys):
        known = extra("timm").get_pretrained_cfg("test_resnet")
        side, crop = known.input_size[1], known.crop_pct
        size, kept, tensors = self.answers("timm:test_resnet", photos, tmp_path / "out")
        assert (size, kept) == (side, pytest.approx(crop))
        assert f"images are resized for the models: --size {side} --crop" in capsys.readouterr().err
        x, y, classes = data.folder(photos, size=side, crop=crop)
        model = load("timm:test_resnet", materials.Images(x, y, classes, ""))
        assert torch.equal(tensors["clean_predictions"][:, 0], logits(model, x).argmax(dim=1))

    @pytest.mark.parametrize(
        ("sizes", "size", "crop"),
        [
            ({"size": {"height": 48, "width": 48}}, 48, 1.0),
            (
                {"size": {"shortest_edge": 64}, "do_center_crop": True}
                | {"crop_size": {"height": 48, "width": 48}},
                48,
                0.75,
            ),
        ],
    )
    def test_transformers(self, photos, tmp_path, sizes, size, crop):
        library = extra("transformers")
        torch.manual_seed(0)
        shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        shape |= {"intermediate_size": 32, "image_size": 48, "patch_size": 8, "num_labels": 5}
        network = library.ViTForImageClassification(library.ViTConfig(**shape)).eval()
        network.save_pretrained(tmp_path / "vit")
        half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_normalize": True}
        half |= {"do_rescale": True, "rescale_factor": 1 / 255}
        (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(half | sizes))
        found = self.answers(f"hf:{tmp_path / 'vit'}", photos, tmp_path / "out")
        assert found[:2] == (size, crop)
        x, _, _ = data.folder(photos, size=size, crop=crop)
        with torch.no_grad():
            by_hand = network((x - 0.5) / 0.5).logits.argmax(dim=1)
        assert torch.equal(found[2]["clean_predictions"][:, 0], by_hand)
