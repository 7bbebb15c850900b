"""The settings of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from saddlepoint.runs.settings.common import Limit, Number, Seed, Settings, Threats

__all__ = ["TrainSettings"]

Method = Literal["ampgd", "ampgd-paper", "avg", "max", "msd", "linf", "l2", "l1", "clean"]


class TrainSettings(Settings):
    """What decides the parameters of the network."""

    words: ClassVar[tuple[str, ...]] = ("train",)
    always: ClassVar[tuple[str, ...]] = ("method", "data", "model", "recipe", "seed")
    examples: ClassVar[Mapping[str, str]] = {
        "data": "such as --data mnist",
        "model": "such as --model A",
    }

    method: Method | None = Field(
        default=None,
        description="ampgd weighs the threats by min-max, ampgd-paper by Algorithm 2 to the letter; avg takes "
        "their mean, max the worst, msd the best of K steps; linf, l2 and l1 train against the threat of that "
        "norm; clean without any. [default: ampgd with threats, clean without]",
    )
    data: str = Field(
        description="mnist, cifar10, fashion-mnist; mnist-sample or cifar10-sample, which train on four fifths "
        "of the embedded test images and test on the rest."
    )
    model: str = Field(
        description="Architecture: A to H, mnist_cnn, mnist_cnn_small or preact_resnet18."
    )
    threat: Threats = Field(default=[])
    recipe: Literal["fast", "paper"] = Field(
        default="fast",
        description="fast is a one-cycle schedule for a CPU, paper the schedule of the paper.",
    )
    seed: Seed = 0
    epochs: int | None = Field(
        default=None, description="Overrides the number of epochs of the recipe."
    )
    steps: int = Field(default=10, description="Steps of the inner attack.")
    rule: str | None = Field(
        default=None,
        description="How the weights of ampgd move. [default: minmax:step_size=1,gamma=0.5; ampgd-paper: "
        "step_size=1/steps, gamma=1]",
    )
    mix: Number = Field(
        default=1.0,
        description="Share of the adversarial loss; 0.5 in the paper's 350-epoch MNIST recipe.",
    )
    start: Literal["zero", "random", "warm"] | None = Field(
        default=None,
        description="Where the inner attack starts: zero, random, or warm, which goes on from the "
        "perturbations and weights that the image was left with an epoch ago. [default: zero; warm for "
        "ampgd-paper]",
    )
    ramp: Number | None = Field(
        default=None,
        description="Epochs over which the radii rise. [default: a quarter of all for fast, 0 for paper and "
        "ampgd-paper]",
    )
    held_out: int | None = Field(
        default=None,
        description="Training images to validate on instead. [default: a fifth, at most 1000; none for clean]",
    )
    limit: Limit = None

    @model_validator(mode="after")
    def _has_threats(self) -> Self:
        if self.method is None:
            object.__setattr__(self, "method", "ampgd" if self.threat else "clean")
        if self.method != "clean" and not self.threat:
            raise ValueError(
                f"`--threat` must be given for --method {self.method}, such as --threat linf:0.3 "
                "--threat l2:2.0, got none; --method clean trains without."
            )
        return self
