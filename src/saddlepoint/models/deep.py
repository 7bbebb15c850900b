"""The paper's deep networks E-H in their CIFAR forms, and the pre-activation ResNet18.

"CIFAR form" means what the papers' own CIFAR experiments share: 3x3 convolutions of stride 1 at the
entrance instead of 7x7 of stride 2, no pooling before the first block, batch normalisation, and one
linear layer after global pooling. Images in [0, 1], (B, channels, size, size), to logits.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .small import Centre

__all__ = [
    "googlenet",
    "preact_resnet18",
    "preact_resnet_small",
    "resnet50",
    "vgg16",
    "wide_resnet",
]


def vgg16(channels: int, size: int, classes: int) -> nn.Sequential:
    """Network E: VGG16 (configuration D of Simonyan & Zisserman) with batch normalisation.

    Thirteen 3x3 convolutions in five stages, each stage halving the side, rounded up; one linear layer
    instead of three, as is usual on CIFAR. Needs `size` of at least 32; one made
    for 32 takes smaller images too.

    Example:
        >>> vgg16(3, 32, 10).eval()(torch.rand(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    layers: list[nn.Module] = [Centre()]
    width = channels
    for stage in ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3):
        for filters in stage:
            layers += [nn.Conv2d(width, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU()]
            width = filters
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    side = -(-size // 32)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * side * side, classes))


def resnet50(channels: int, size: int, classes: int) -> nn.Sequential:
    """Network F: ResNet50 (He et al.), bottleneck blocks 3-4-6-3.

    Example:
        >>> resnet50(3, 32, 10).eval()(torch.rand(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    del size  # Global pooling makes the network independent of it.
    blocks: list[nn.Module] = []
    width = 64
    for stage, (planes, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            blocks.append(Bottleneck(width, planes, stride))
            width = Bottleneck.expansion * planes
    entrance = _conv_norm_relu(channels, 64, 3, bias=False)
    return nn.Sequential(Centre(), *entrance, *blocks, *_head(width, classes))


class Bottleneck(nn.Module):
    """Residual block 1x1, 3x3, 1x1 that widens fourfold; a 1x1 convolution where shapes change."""

    expansion = 4

    def __init__(self, width: int, planes: int, stride: int) -> None:
        super().__init__()
        wide = self.expansion * planes
        self.body = nn.Sequential(
            *_conv_norm_relu(width, planes, 1, bias=False),
            *_conv_norm_relu(planes, planes, 3, stride=stride, bias=False),
            nn.Conv2d(planes, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != wide:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width, wide, 1, stride=stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, H, W) to (B, 4 * planes, H / stride, W / stride)."""
        return F.relu(self.body(x) + self.shortcut(x))


def wide_resnet(channels: int, size: int, classes: int) -> nn.Sequential:
    """Network G: the Wide-ResNet of Madry et al., which the paper cites.

    Widths 160-320-640, five pre-activation units each (so 32 layers and not the 28 of Zagoruyko &
    Komodakis), leaky ReLU of slope 0.1, and shortcuts without parameters: average pooling, and zeros
    for the channels that are new.

    Example:
        >>> sum(p.numel() for p in wide_resnet(3, 32, 10).parameters())
        45901914
    """
    del size
    units: list[nn.Module] = []
    width = 16
    for stage, filters in enumerate((160, 320, 640)):
        for unit in range(5):
            stride = 2 if stage > 0 and unit == 0 else 1
            # The very first unit activates before the shortcut leaves, as in the original.
            units.append(WideUnit(width, filters, stride, shared=stage == unit == 0))
            width = filters
    last = (nn.BatchNorm2d(width), nn.LeakyReLU(0.1))
    entrance = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
    return nn.Sequential(Centre(), entrance, *units, *last, *_head(width, classes))


class WideUnit(nn.Module):
    """Pre-activation residual unit of two 3x3 convolutions with a shortcut free of parameters."""

    def __init__(self, width: int, filters: int, stride: int, *, shared: bool) -> None:
        super().__init__()
        self.shared, self.stride = shared, stride
        self.before, self.after = (filters - width) // 2, (filters - width + 1) // 2
        self.activate = nn.Sequential(nn.BatchNorm2d(width), nn.LeakyReLU(0.1))
        self.body = nn.Sequential(
            nn.Conv2d(width, filters, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.LeakyReLU(0.1),
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, H, W) to (B, filters, H / stride, W / stride)."""
        activated = self.activate(x)
        shortcut = activated if self.shared else x
        shortcut = F.avg_pool2d(shortcut, self.stride, ceil_mode=True)
        # F.pad counts from the last axis: two zeros for W, two for H, then the channels.
        shortcut = F.pad(shortcut, (0, 0, 0, 0, self.before, self.after))
        result: Tensor = self.body(activated) + shortcut
        return result


def googlenet(channels: int, size: int, classes: int) -> nn.Sequential:
    """Network H: GoogLeNet (Szegedy et al.), nine Inception blocks, no auxiliary classifiers.

    The 5x5 branch is two 3x3 convolutions, as in the CIFAR form the paper trained.

    Example:
        >>> googlenet(3, 32, 10).eval()(torch.rand(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    del size
    pool = nn.MaxPool2d(3, stride=2, padding=1)
    # Input width; 1x1; 3x3 reduced and full; 5x5 reduced and full; after pooling.
    return nn.Sequential(
        Centre(),
        *_conv_norm_relu(channels, 192, 3),
        Inception(192, 64, (96, 128), (16, 32), 32),
        Inception(256, 128, (128, 192), (32, 96), 64),
        pool,
        Inception(480, 192, (96, 208), (16, 48), 64),
        Inception(512, 160, (112, 224), (24, 64), 64),
        Inception(512, 128, (128, 256), (24, 64), 64),
        Inception(512, 112, (144, 288), (32, 64), 64),
        Inception(528, 256, (160, 320), (32, 128), 128),
        pool,
        Inception(832, 256, (160, 320), (32, 128), 128),
        Inception(832, 384, (192, 384), (48, 128), 128),
        *_head(1024, classes),
    )


class Inception(nn.Module):
    """Four branches side by side: 1x1; 1x1 then 3x3; 1x1 then 5x5; pooling then 1x1."""

    def __init__(
        self, width: int, direct: int, three: tuple[int, int], five: tuple[int, int], pooled: int
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            (
                nn.Sequential(*_conv_norm_relu(width, direct, 1)),
                nn.Sequential(*_conv_norm_relu(width, three[0], 1), *_conv_norm_relu(*three, 3)),
                nn.Sequential(
                    *_conv_norm_relu(width, five[0], 1),
                    *_conv_norm_relu(*five, 3),
                    *_conv_norm_relu(five[1], five[1], 3),
                ),
                nn.Sequential(
                    nn.MaxPool2d(3, stride=1, padding=1), *_conv_norm_relu(width, pooled, 1)
                ),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, H, W) to (B, sum of the branches, H, W)."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def preact_resnet18(channels: int, size: int, classes: int) -> nn.Sequential:
    """Pre-activation ResNet18 (He et al., identity mappings), blocks 2-2-2-2.

    Example:
        >>> preact_resnet18(3, 32, 10).eval()(torch.rand(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    del size
    return _preact_resnet(channels, classes, (64, 128, 256, 512), 2)


def preact_resnet_small(channels: int, size: int, classes: int) -> nn.Sequential:
    """A pre-activation ResNet of a quarter of the width and one block per stage, for training on a CPU.

    Example:
        >>> sum(p.numel() for p in preact_resnet_small(3, 32, 10).parameters())
        308378
    """
    del size
    return _preact_resnet(channels, classes, (16, 32, 64, 128), 1)


def _preact_resnet(
    channels: int, classes: int, stages: Sequence[int], blocks_each: int
) -> nn.Sequential:
    blocks: list[nn.Module] = []
    width = stages[0]
    for stage, filters in enumerate(stages):
        for block in range(blocks_each):
            blocks.append(PreActBlock(width, filters, 2 if stage > 0 and block == 0 else 1))
            width = filters
    entrance = nn.Conv2d(channels, stages[0], 3, padding=1, bias=False)
    last = (nn.BatchNorm2d(width), nn.ReLU())
    return nn.Sequential(Centre(), entrance, *blocks, *last, *_head(width, classes))


class PreActBlock(nn.Module):
    """Twice normalise, activate, convolve; a 1x1 shortcut after activation where shapes change."""

    def __init__(self, width: int, filters: int, stride: int) -> None:
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(width, filters, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
        )
        changes = stride != 1 or width != filters
        self.shortcut = nn.Conv2d(width, filters, 1, stride=stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, H, W) to (B, filters, H / stride, W / stride)."""
        activated = self.activate(x)
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        result: Tensor = self.body(activated) + shortcut
        return result


def _conv_norm_relu(
    width: int, filters: int, kernel: int, *, stride: int = 1, bias: bool = True
) -> Sequence[nn.Module]:
    conv = nn.Conv2d(width, filters, kernel, stride=stride, padding=kernel // 2, bias=bias)
    return conv, nn.BatchNorm2d(filters), nn.ReLU()


def _head(width: int, classes: int) -> Sequence[nn.Module]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)
