"""The settings of a training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from saddlepoint.runs import texts
from saddlepoint.runs.settings.common import (
    Classes,
    Crop,
    Limit,
    Mean,
    Names,
    Number,
    Settings,
    Size,
    Std,
    Threats,
    check_weights,
)
from saddlepoint.runs.settings.seeds import TrainingSeed

__all__ = ["TrainSettings"]

Method = Literal["ampgd", "ampgd-paper", "avg", "max", "msd", "eat", "linf", "l2", "l1", "clean"]


class TrainSettings(Settings):
    """What decides the parameters of the network."""

    words: ClassVar[tuple[str, ...]] = ("train",)
    always: ClassVar[tuple[str, ...]] = ("method", "data", "model", "recipe", "seed")
    examples: ClassVar[Mapping[str, str]] = {
        "data": "such as --data mnist",
        "model": "such as --model A",
    }

    also: ClassVar[Mapping[str, str]] = {"model": "models"}

    method: Method | None = Field(
        default=None,
        description="ampgd weighs the threats by min-max, ampgd-paper by Algorithm 2 to the letter; avg takes "
        "their mean, max the worst, msd the best of K steps; eat draws one threat per step; linf, l2 and l1 "
        "train against the threat of that norm; clean without any. [default: ampgd with threats, "
        "clean without]",
    )
    data: str = Field(
        description="mnist, cifar10, fashion-mnist; mnist-sample or cifar10-sample, which train on four fifths "
        "of the embedded test images and test on the rest; or your own, as in `evaluate`: a folder with one "
        "folder of images per class, file.npz, file.py:dataset or package.module:dataset."
    )
    model: str = Field(
        description="An architecture with new parameters: A to H, A_unshifted to D_unshifted (without the "
        "shift of their input), mnist_cnn, mnist_cnn_small, preact_resnet18 or preact_resnet_small; or a "
        "network as in `evaluate`, which is trained on from what it is: mnist-a, nets.py:factory, "
        "package.module:factory, parameters.safetensors:A, parameters.pt:nets.py:factory, timm:NAME, hf:FOLDER."
    )
    mean: Mean = None
    std: Std = None
    init: str | None = Field(
        default=None,
        description="Parameters to begin with, to fine-tune them: parameters.safetensors, a state dict .pt, or "
        "the name of a shipped network, such as mnist-a.",
    )
    test_data: str | None = Field(
        default=None,
        description="Images to test on, in the words of --data. [default: the test images of a named data set, "
        "or of code that takes `split`; of other data a fifth of every class, drawn at random]",
    )
    classes: Classes = None
    size: Size = None
    crop: Crop = 1.0
    threat: Threats = Field(default=[])
    train_radius: Names = Field(
        default=[],
        description="Norms and radii to train with where they differ from those of --threat, which are tested: "
        "l1:12 or linf:0.33,l1:12.",
    )
    recipe: Literal["fast", "paper"] = Field(
        default="fast",
        description="fast is a one-cycle schedule for a CPU, paper the schedule of the paper.",
    )
    seed: TrainingSeed = 0
    epochs: int | None = Field(
        default=None, description="Overrides the number of epochs of the recipe."
    )
    learning_rate: Number | None = Field(
        default=None,
        description="Overrides the highest learning rate of the recipe; fine-tuning wants a lower one.",
    )
    batch_size: int | None = Field(
        default=None, ge=1, description="Overrides the images per step of the recipe."
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
    plain_images: bool = Field(
        default=False,
        description="Train on images as they are, where the recipe would mirror and shift them.",
    )
    precision: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        default="float32",
        description="What the network computes in while it is trained: float32, bfloat16, float16, where "
        "gradients are scaled so that they do not vanish, or auto, which measures whether bfloat16 is faster. "
        "Its parameters, and what is measured of it, are in float32.",
    )

    test_images: int = Field(
        default=1000,
        ge=1,
        description="Attack the first so many test images in the end. Clean accuracy and FGSM are of all.",
    )
    test_steps: int = Field(default=50, ge=1, description="Steps of these attacks.")
    test_restarts: int = Field(
        default=3, ge=1, description="How many of these attacks there are per threat."
    )

    @classmethod
    def _merged(cls, read: dict[str, Any], given: dict[str, Any], file: Path) -> dict[str, Any]:
        """Both names of the network are overridden by either flag."""
        names = {"model", "models"} if given.keys() & {"model", "models"} else set()
        return super()._merged({k: v for k, v in read.items() if k not in names}, given, file)

    @model_validator(mode="before")
    @classmethod
    def _one_model(cls, values: Any) -> Any:
        """`models` is `model`, as other commands call it; one network is trained."""
        if not isinstance(values, dict) or "models" not in values:
            return values
        models = values["models"]
        if "model" in values:
            raise ValueError(
                "`--models` must be left out where --model is given: they are the same."
            )
        return {k: v for k, v in values.items() if k != "models"} | {
            "model": models[0] if isinstance(models, list) and len(models) == 1 else models
        }

    @field_validator("model", mode="before")
    @classmethod
    def _is_one(cls, value: object) -> object:
        words = texts.split(value) if isinstance(value, str) else value
        if isinstance(words, list) and len(words) != 1:
            raise ValueError(f"`--model` must name one network to train, got {len(words)}.")
        return value

    @model_validator(mode="after")
    def _has_threats(self) -> Self:
        if self.method is None:
            object.__setattr__(self, "method", "ampgd" if self.threat else "clean")
        if self.method != "clean" and not self.threat:
            raise ValueError(
                f"`--threat` must be given for --method {self.method}, such as --threat linf:0.3 "
                "--threat l2:2.0, got none; --method clean trains without."
            )
        known = texts.threats(self.threat)
        texts.check_positive(known)
        texts.radii(self.train_radius, known)
        if self.train_radius and self.method == "clean":
            raise ValueError(
                "`--train-radius` must be left out for --method clean, which trains without threats, got "
                f"{','.join(self.train_radius)}."
            )
        if self.rule is not None:
            check_weights(self.rule, len(self.threat))
        return self
