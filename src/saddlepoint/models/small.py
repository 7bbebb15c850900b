"""The paper's small networks A-D (appendix, table of architectures), `mnist_cnn` and a small form of it.

Every network maps images in [0, 1], shape (B, channels, size, size), to logits (B, classes) and
does its own normalisation: A-D subtract 0.5 first, the convention of the Carlini-Wagner framework
the paper builds on. The paper's table and the authors' networks have no such shift: `unshifted` leaves it out.
"""

from collections.abc import Callable

from torch import Tensor, nn

__all__ = [
    "Centre",
    "all_cnn",
    "lenet",
    "lenet_v2",
    "mlp",
    "mnist_cnn",
    "mnist_cnn_small",
    "unshifted",
]


class Centre(nn.Module):
    """Moves inputs from [0, 1] to [-0.5, 0.5], inside the model.

    Example:
        >>> import torch
        >>> Centre()(torch.tensor([0.0, 1.0]))
        tensor([-0.5000,  0.5000])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Subtracts one half; any shape."""
        return x - 0.5


def unshifted(
    make: Callable[[int, int, int], nn.Sequential],
) -> Callable[[int, int, int], nn.Sequential]:
    """The same network for inputs as they come, in [0, 1], and not around zero.

    Args:
        make: Makes a network that begins with `Centre`.

    Example:
        >>> import torch
        >>> unshifted(mlp)(1, 28, 10)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def made(channels: int, size: int, classes: int) -> nn.Sequential:
        return nn.Sequential(*list(make(channels, size, classes))[1:])

    return made


def mlp(channels: int, size: int, classes: int) -> nn.Sequential:
    """Network A: fully connected, 128-128-64.

    Example:
        >>> import torch
        >>> mlp(1, 28, 10)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    return nn.Sequential(
        Centre(),
        nn.Flatten(),
        nn.Linear(channels * size * size, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def all_cnn(channels: int, size: int, classes: int) -> nn.Sequential:
    """Network B: All-CNN, convolutions only, global average pooling at the end.

    As in the paper's table, the two convolutions of stride 2 are followed by dropout and have no
    ReLU: they take the place of pooling. No layer depends on `size`.

    Example:
        >>> import torch
        >>> all_cnn(3, 32, 10)(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    del size  # Global pooling makes the network independent of it.
    network = nn.Sequential(
        Centre(),
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.Dropout(0.5),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 3, stride=2, padding=1),
        nn.Dropout(0.5),
        nn.Conv2d(128, 128, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 128, 1),
        nn.ReLU(),
        nn.Conv2d(128, classes, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    # Nine layers without normalisation: torch's default scale lets the signal die out, He's not.
    for module in network:
        # Normal numbers on the meta device, which keeps none, would import torch._dynamo: two seconds.
        if isinstance(module, nn.Conv2d) and module.bias is not None and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)
    return network


def lenet(channels: int, size: int, classes: int) -> nn.Sequential:
    """Network C: LeNet, 5x5 convolutions 6 and 16 without padding, then 120-84.

    Example:
        >>> import torch
        >>> lenet(1, 28, 10)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    side = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        Centre(),
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def lenet_v2(channels: int, size: int, classes: int) -> nn.Sequential:
    """Network D: LeNetV2, 3x3 convolutions 32 and 64, then 128 with dropout 0.25.

    Example:
        >>> import torch
        >>> lenet_v2(1, 28, 10)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    side = size // 2 // 2
    return nn.Sequential(
        Centre(),
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side * side, 128),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(128, classes),
    )


def mnist_cnn(channels: int, size: int, classes: int) -> nn.Sequential:
    """The four-layer network of the multi-norm defence literature (Maini et al., Madry et al.).

    5x5 convolutions 32 and 64, each with 2x2 pooling, then 1024 units; inputs are used as they
    come, in [0, 1].

    Example:
        >>> import torch
        >>> mnist_cnn(1, 28, 10)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    side = size // 2 // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side * side, 1024),
        nn.ReLU(),
        nn.Linear(1024, classes),
    )


def mnist_cnn_small(channels: int, size: int, classes: int) -> nn.Sequential:
    """The small network of the certified-defence literature (Wong & Kolter, 2018), for a CPU.

    4x4 convolutions 16 and 32 with stride 2, then 100 units: a twelfth of the work of `mnist_cnn`. Inputs are
    used as they come, in [0, 1].

    Example:
        >>> import torch
        >>> mnist_cnn_small(1, 28, 10)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    side = size // 2 // 2
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * side * side, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )
