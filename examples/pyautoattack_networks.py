"""Two networks that come inside the pyautoattack package, ready for an evaluation.

A CIFAR-10 ResNet-18 trained without a defence, and an MNIST network trained against linf perturbations of 0.3:

    saddlepoint evaluate examples.pyautoattack_networks:resnet18 --data cifar10 --suite autoattack
    saddlepoint evaluate examples.pyautoattack_networks:mnist --data mnist --suite autoattack

Needs pip install '.[eval]' in the checkout, and h5py for the second.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn

import saddlepoint as sp


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; parameters are named as in its files."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        straight = stride == 1 and inside == outside
        self.shortcut = nn.Sequential(
            *()
            if straight
            else (nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Features, (n, outside, height / stride, width / stride)."""
        inner = self.bn1(self.conv1(x)).relu()
        features: Tensor = self.bn2(self.conv2(inner)) + self.shortcut(x)
        return features.relu()


class ResNet18(nn.Module):
    """The ResNet-18 for images of 32 x 32: no pooling at the start."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.linear = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (n, classes), of images in [0, 1]."""
        x = self.bn1(self.conv1(x)).relu()
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


def resnet18() -> nn.Module:
    """The CIFAR-10 network, in evaluation mode."""
    model = ResNet18()
    model.load_state_dict(torch.load(_file("model_test.pt"), map_location="cpu", weights_only=True))
    return model.eval()


def mnist() -> nn.Module:
    """The robust MNIST network, in evaluation mode; logits, without the softmax it was saved with."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError(
            "the MNIST network is stored as HDF5; pip install h5py reads it"
        ) from error
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(784, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )
    layers = dict(zip(("c1", "c2", "c3", "c4", "d1", "d2"), (0, 2, 5, 7, 11, 13), strict=True))
    with h5py.File(_file("tf_model.weight.h5"), "r") as file:
        for name, index in layers.items():
            group = file[f"clf/{name}/clf/{name}"]
            kernel = torch.from_numpy(group["kernel:0"][:])
            if name == "d1":  # it was flattened with the channels last, here they come first
                kernel = kernel.reshape(7, 7, 16, 256).permute(2, 0, 1, 3).reshape(784, 256)
            # (height, width, in, out) to (out, in, height, width), and (in, out) to (out, in)
            kernel = kernel.permute(3, 2, 0, 1) if kernel.dim() == 4 else kernel.T
            with torch.no_grad():
                model[index].weight.copy_(kernel)
                model[index].bias.copy_(torch.from_numpy(group["bias:0"][:]))
    return model.eval()


def main(images: int = 200) -> dict[str, float]:
    """Prints and returns the accuracy of both on test images."""
    found = {}
    for name, factory in (("cifar10", resnet18), ("mnist", mnist)):
        x, y = sp.data.load(name, "test", limit=images)
        with torch.no_grad():
            guesses = torch.cat([logits.argmax(dim=1) for logits in map(factory(), x.split(50))])
        found[name] = (guesses == y).double().mean().item()
        print(f"{name:<8} {100 * found[name]:.1f}% of {images}")
    return found


def _file(name: str) -> Path:
    package = importlib.util.find_spec("pyautoattack")
    if package is None or package.origin is None:
        raise ImportError(
            "the parameters are in pyautoattack; install it with pip install '.[eval]' in the checkout"
        )
    return Path(package.origin).parent / "examples" / name


if __name__ == "__main__":
    main()
