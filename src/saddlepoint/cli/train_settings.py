"""What `saddlepoint train` is told, and the line that says it again."""

import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

__all__ = ["TrainSettings"]

Method = Literal["ampgd", "ampgd-paper", "avg", "max", "msd", "linf", "l2", "l1", "clean"]


@Parameter(name="*")
@dataclass(kw_only=True)
class TrainSettings:
    """What decides the parameters of the network."""

    data: str
    """mnist, cifar10, fashion-mnist; mnist-sample or cifar10-sample, which train on four fifths of the embedded
    test images and test on the rest."""
    model: str
    """Architecture: A to H, mnist_cnn, mnist_cnn_small or preact_resnet18."""
    method: Method | None = None
    """ampgd weighs the threats by min-max, ampgd-paper by Algorithm 2 to the letter; avg takes their mean, max
    the worst, msd the best of K steps; linf, l2 and l1 train against the threat of that norm; clean without
    any. [default: ampgd with threats, clean without]"""
    threat: Annotated[list[str], Parameter(negative=())] = field(default_factory=list)
    """Norm and radius, such as linf:0.3, l2:2.0, l1:10 or linf:8/255; give it once per threat."""
    recipe: Literal["fast", "paper"] = "fast"
    """fast is a one-cycle schedule for a CPU, paper the schedule of the paper."""
    epochs: int | None = None
    """Overrides the number of epochs of the recipe."""
    steps: int = 10
    """Steps of the inner attack."""
    rule: str | None = None
    """How the weights of ampgd move. [default: minmax:step_size=1,gamma=0.5; ampgd-paper: step_size=1/steps,
    gamma=1]"""
    mix: float = 1.0
    """Share of the adversarial loss; 0.5 in the paper's 350-epoch MNIST recipe."""
    start: Literal["zero", "random", "warm"] | None = None
    """Where the inner attack starts; warm goes on from the perturbations and weights that the image was left
    with an epoch ago. [default: zero; warm for ampgd-paper]"""
    ramp: float | None = None
    """Epochs over which the radii rise. [default: a quarter of all for fast, 0 for paper and ampgd-paper]"""
    held_out: int | None = None
    """Training images to validate on instead. [default: a fifth, at most 1000; none for clean]"""
    seed: int = 0
    """Of the initial parameters and of everything random in training."""
    limit: int | None = None
    """Train on the first so many images only."""

    def __post_init__(self) -> None:
        if self.method is None:
            self.method = "ampgd" if self.threat else "clean"
        if self.method != "clean" and not self.threat:
            raise ValueError(
                f"`--threat` must be given for --method {self.method}, such as --threat linf:0.3 "
                "--threat l2:2.0, got none; --method clean trains without."
            )

    def command(self, out: Path | None = None) -> str:
        """The line that repeats the run; options of their default value are left out."""
        words = [
            f"saddlepoint train --method {self.method} --data {self.data} --model {self.model}"
        ]
        words += [f"--threat {text}" for text in self.threat]
        words.append(f"--recipe {self.recipe} --seed {self.seed}")
        said = ("data", "model", "method", "threat", "recipe", "seed")
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in said and value != item.default:
                words.append(f"--{item.name.replace('_', '-')} {value}")
        return " ".join([*words, "--out", "DIR" if out is None else shlex.quote(str(out))])
