import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import sitewise as sw
from sitewise.backbones.build import Normalize, Pixels, build_backbone
from sitewise.backbones.weights import read_weights

IMAGES = torch.randint(0, 255, (4, 3, 28, 28), dtype=torch.uint8)


def test_the_cnn_has_the_papers_layers():
    module, width = build_backbone("cnn", IMAGES)
    layers = [type(layer).__name__ for layer in module][1:]
    assert layers == ["Conv2d", "MaxPool2d", "ReLU"] * 3 + ["Flatten", "Linear"]
    assert [layer.out_channels for layer in module if isinstance(layer, nn.Conv2d)] == [32, 32, 64]
    assert [layer.kernel_size for layer in module if isinstance(layer, nn.MaxPool2d)] == [2, 2, 2]
    assert width == module[-1].out_features == 256
    assert module(IMAGES).shape == (4, 256)


def test_pooling_before_relu_is_the_papers_order_to_the_bit():
    module, _ = build_backbone("cnn", IMAGES)
    layers = list(module)
    for i in [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]:
        layers[i : i + 2] = layers[i + 1], layers[i]
    papers = nn.Sequential(*layers)
    weights = list(module.parameters())
    gradients = [torch.autograd.grad(network(IMAGES).square().sum(), weights) for network in (module, papers)]
    assert torch.equal(module(IMAGES), papers(IMAGES))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*gradients, strict=True))


def test_auto_goes_by_the_shape():
    assert build_backbone("auto", IMAGES)[1] == 256
    table = torch.randn(50, 3) * torch.tensor([1.0, 100.0, 0.0]) + 5
    module, width = build_backbone("auto", table)
    assert module(table).shape == (50, width)
    scaled = module[2](table)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    assert scaled.isfinite().all()


def test_a_module_of_ones_own_is_copied_and_measured():
    mine = nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, 7))
    module, width = build_backbone(mine, IMAGES)
    assert width == 7
    with torch.no_grad():
        module[1][1].weight.zero_()
    assert mine[1].weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("backbone", "X", "words"),
    [
        ("resnet18", IMAGES, "got 'resnet18'; did you mean 'monai:resnet18'"),
        ("monai:resnet19", IMAGES, "did you mean 'monai:resnet18'"),
        ("timm:", IMAGES, "timm:NAME"),
        ("monai:resnet18", torch.zeros(4, 2, 32, 32), "1 or 3 channels"),
        ("monai:resnet18", torch.zeros(4, 5), "needs images"),
        ("cnn", torch.zeros(4, 5), "needs images"),
        ("cnn", torch.zeros(4, 3, 4, 4), "8 pixels or more"),
        (nn.Conv2d(3, 2, 3), IMAGES, "end it with Flatten"),
        (nn.Linear(9, 2), torch.zeros(4, 5), "does not take inputs of shape"),
    ],
)
def test_what_does_not_fit_is_refused(backbone, X, words):
    with pytest.raises(ValueError, match=words):
        build_backbone(backbone, X)


def test_bytes_become_shares():
    assert Pixels()(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[0.0, 1.0]]
    assert Pixels()(torch.tensor([[0.5]], dtype=torch.float64)).dtype == torch.float64


def test_tables_and_images_are_standardized_as_the_perceptron_sees_them():
    module, _ = build_backbone("mlp", IMAGES)
    scaled = module[:3](IMAGES)
    assert scaled.mean().abs() < 1e-4
    assert scaled.abs().max() < 3


def test_normalization_is_part_of_the_network():
    images = torch.randint(0, 200, (700, 3, 8, 8), dtype=torch.uint8)
    images[:350] //= 2
    images[:, 2] = 7
    module, _ = build_backbone("cnn", images, normalize="data")
    seen = module[:2](images)
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(seen[:, :2].std((0, 2, 3)), torch.ones(2), atol=1e-3, rtol=0)
    assert "1.mean" in module.state_dict()
    gray, _ = build_backbone("cnn", images[:, :1], normalize="imagenet")
    assert abs(float(gray[1].mean) - 0.449) < 1e-3
    plain, _ = build_backbone("cnn", images)
    assert not any(isinstance(layer, Normalize) for layer in plain)


@pytest.mark.parametrize(
    ("settings", "X", "words"),
    [
        ({"normalize": "imgenet"}, IMAGES, "normalize must be None, 'imagenet' or 'data', got 'imgenet'"),
        ({"normalize": "data"}, torch.zeros(4, 5), "is for images"),
        ({"normalize": "imagenet"}, torch.zeros(4, 2, 8, 8), "1 or 3 channels"),
        ({"normalize": "data", "backbone": "mlp"}, IMAGES, "itself"),
        ({"weights": "a.pt"}, IMAGES, "not for backbone='auto'"),
        ({"weights": 3}, IMAGES, "path of a file"),
        ({"weights": "a.onnx", "backbone": "timm:x"}, IMAGES, "ends in .safetensors"),
        ({"weights": "a.pt", "backbone": "timm:x"}, IMAGES, "no file 'a.pt'; nothing is downloaded"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, X, words):
    with pytest.raises(ValueError, match=words):
        build_backbone(**{"backbone": "auto", "X": X, **settings})


def small_network(n_channels=3):
    return nn.Sequential(nn.Conv2d(n_channels, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def fake_timm(monkeypatch):
    """A library with one network, whose classifier is called head."""

    def create_model(name, pretrained, num_classes, in_chans):
        assert not pretrained
        assert num_classes == 0
        if name != "tiny":
            raise RuntimeError(f"Unknown model ({name})")
        network = small_network(in_chans)
        network.default_cfg = {"classifier": "head"}
        return network

    module = ModuleType("timm")
    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)


@pytest.mark.parametrize("prefix", ["", "module.", "module.backbone.", "model."])
@pytest.mark.parametrize("wrapper", [None, "state_dict"])
def test_weights_come_from_a_file(monkeypatch, tmp_path, prefix, wrapper):
    fake_timm(monkeypatch)
    trained = small_network()
    nn.init.constant_(trained[1].running_mean, 3.0)
    state = {prefix + name: value for name, value in trained.state_dict().items() if "tracked" not in name}
    state |= {f"{prefix}head.weight": torch.zeros(7, 4), f"{prefix}head.bias": torch.zeros(7)}
    torch.save(state if wrapper is None else {wrapper: state, "epoch": 3}, tmp_path / "w.pth")
    module, width = build_backbone("timm:tiny", IMAGES, weights=tmp_path / "w.pth")
    assert width == module[-1].out_features == 256
    for name, value in trained.state_dict().items():
        assert torch.equal(module[1].state_dict()[name], value)


def test_gray_images_get_the_sum_of_the_colours(monkeypatch, tmp_path):
    fake_timm(monkeypatch)
    trained = small_network().eval()
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    gray = torch.rand(2, 1, 28, 28)
    module, _ = build_backbone("timm:tiny", gray, weights=tmp_path / "w.pt")
    torch.testing.assert_close(module[1].eval()(gray), trained(gray.expand(-1, 3, -1, -1)))


def test_weights_that_do_not_fit_are_listed(tmp_path):
    state = small_network().state_dict()
    state["extra.weight"] = state.pop("0.bias")
    state["0.weight"] = torch.zeros(4, 3, 5, 5)
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="do not fit") as caught:
        build_backbone(small_network(), IMAGES, weights=tmp_path / "w.pt")
    for words in ("not in the file: 0.bias", "not in the network: extra.weight", "0.weight has shape (4, 3, 5, 5)"):
        assert words in str(caught.value)


def test_a_file_with_more_than_tensors_is_not_read(tmp_path):
    torch.save({"a": SimpleNamespace()}, tmp_path / "code.pt")
    torch.save({"a": 1}, tmp_path / "number.pt")
    (tmp_path / "text.pth").write_text("hello")
    for name, words in (("code.pt", "is not read"), ("number.pt", "names to tensors"), ("text.pth", "is not read")):
        with pytest.raises(ValueError, match=words):
            read_weights(tmp_path / name)


def test_safetensors_are_read(tmp_path):
    library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    library.save_file({"a": torch.ones(2)}, tmp_path / "w.safetensors")
    assert torch.equal(read_weights(tmp_path / "w.safetensors")["a"], torch.ones(2))
    (tmp_path / "bad.safetensors").write_text("hello")
    with pytest.raises(ValueError, match="no safetensors file"):
        read_weights(tmp_path / "bad.safetensors")


def test_torchvision_networks_lose_their_last_layer(monkeypatch):
    def get_model(name, weights):
        assert weights is None
        if name != "tiny":
            raise ValueError(f"Unknown model {name}")
        return nn.Sequential(small_network(), nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1000)))

    library, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    models.get_model = get_model
    monkeypatch.setitem(sys.modules, "torchvision", library)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    module, _ = build_backbone("torchvision:tiny", IMAGES[:, :1])
    assert module[-1].in_features == 5
    assert module(IMAGES[:, :1]).shape == (4, 256)
    with pytest.raises(ValueError, match="lists the names"):
        build_backbone("torchvision:resnet1000", IMAGES)
    fake_timm(monkeypatch)
    with pytest.raises(ValueError, match="lists the names"):
        build_backbone("timm:resnet1000", IMAGES)


@pytest.mark.parametrize("library", ["monai", "timm", "torchvision"])
def test_a_library_that_is_not_there_is_named(monkeypatch, library):
    for name in ("monai.networks.nets", "timm", "torchvision.models"):
        monkeypatch.setitem(sys.modules, name, None)
    words = 'pip install "sitewise\\[images\\]"' if library == "monai" else f"pip install {library}"
    with pytest.raises(ImportError, match=words):
        build_backbone(f"{library}:resnet18", IMAGES)


@pytest.mark.skipif(importlib.util.find_spec("monai") is None, reason="monai is not installed")
@pytest.mark.parametrize(("name", "width", "n_channels"), [("resnet18", 512, 1), ("resnet50", 2048, 3)])
def test_monai_has_the_resnets_of_the_literature(name, width, n_channels):
    """As many parameters as ResNets for ImageNet have (11,689,512 and 25,557,032), less those of the classifier."""
    X = torch.zeros(2, n_channels, 64, 64, dtype=torch.uint8)
    module, n_features = build_backbone(f"monai:{name}", X)
    assert n_features == 256
    assert module[-1].in_features == width
    count = sum(p.numel() for p in module[1].parameters()) + 1000 * (width + 1) + 64 * 49 * (3 - n_channels)
    assert count == {"resnet18": 11_689_512, "resnet50": 25_557_032}[name]
    names = set(module[1].state_dict())
    assert {"conv1.weight", "bn1.running_var", "layer2.0.downsample.0.weight", "layer4.1.conv2.weight"} <= names
    assert module[1].conv1.stride == (2, 2)
    assert module(X).shape == (2, 256)


def test_the_classifier_hands_its_settings_on(tmp_path):
    torch.manual_seed(0)
    trained = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 4))
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    X, y = torch.randint(0, 255, (40, 3, 8, 8), dtype=torch.uint8).numpy(), torch.arange(40).numpy() % 2
    model = sw.GPAClassifier(
        trained, weights=tmp_path / "w.pt", normalize="data", epochs=1, learning_rate=1e-12, device="cpu"
    ).fit(X, y)
    backbone = model.scorer_.module.backbone
    torch.testing.assert_close(backbone[2][1].weight, trained[1].weight)
    assert isinstance(backbone[1], Normalize)
    with pytest.raises(ValueError, match="2 problems"):
        sw.GPAClassifier("monai:resnet18", weights="none.pt", normalize="x").fit(X, y)
