"""`saddlepoint attack`: one perturbation against several models, images or views."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

__all__ = ["app"]


def _examples(*lines: str) -> str:
    return "\n".join(["Examples:", "", *(f"- `saddlepoint attack {line}`" for line in lines)])


app = App(
    name="attack",
    help="Find one perturbation that fools all models, all images of a group, or all views at once.",
    help_epilogue=_examples("ensemble --data mnist-sample --models A,C,D --eps 0.2"),
)

Flag = Annotated[bool, Parameter(negative=())]


@Parameter(name="*")
@dataclass(kw_only=True)
class Settings:
    """What decides the numbers. None means: as in --config, or the default."""

    data: str | None = None
    """mnist, cifar10, fashion-mnist, mnist-sample, cifar10-sample, a folder with one folder of images per
    class, or a file.npz with `images` and `labels`. [default: mnist-sample]"""
    classes: str | None = None
    """Classes of your own data in the order of the logits: names separated by commas, or a file with one per
    line. [default: classes.txt in the folder, else the names of its folders, numbers as numbers]"""
    size: int | None = None
    """Resize the images of a folder to size x size: shorter side, then the centre."""
    models: str | None = None
    """Separated by commas: A,B,C,D (networks of the data set), mnist-a, weights.safetensors:A, program.pt2,
    package.module:factory."""
    norm: str | None = None
    """linf, l2, l1 or l0. [default: linf]"""
    eps: str | None = None
    """Radius, such as 0.2 or 8/255. [default: the paper's for this attack, MNIST or CIFAR-10, and norm, if it
    has one]"""
    rule: str | None = None
    """How the weights move: minmax, average, worst, entropic, fixed:0.2,0.1,0.4,0.3 (which sum to one); with
    options as in minmax:gamma=3,step_size=1/50. What is left out is the library's number, with --method apgda
    the paper's where it has one; --print-config shows it. [default: minmax]"""
    baseline: str | None = None
    """A rule to compare with, such as average."""
    loss: str | None = None
    """cw, cross-entropy, dlr, or clipped:THRESHOLD, the C&W margin by which a domain is fooled enough and stops
    pulling: clipped:0 or clipped:-10. [default: cw]"""
    labels: str | None = None
    """true, or predicted, which attacks each model's own answers as the authors' code does; success is counted
    against the true classes in both. [default: true]"""
    steps: int | None = None
    """Updates per run. [default: 50 for ensemble, 20 otherwise]"""
    method: str | None = None
    """attack (strong and fast) or apgda (the paper's algorithm to the letter). [default: attack]"""
    restarts: int | None = None
    """Runs for rows still standing, with --method attack. [default: 1]"""
    step_size: str | None = None
    """Step size of --method apgda. [default: the paper's for this attack, MNIST or CIFAR-10, and norm; where it
    has none, this must be given]"""
    quantize: int | None = None
    """256 keeps adversarial images 8-bit, so that they survive saving."""
    split: str | None = None
    """test or train. [default: test]"""
    limit: int | None = None
    """Use the first so many images."""
    batch_size: int | None = None
    """Rows between two saves. [default: 64]"""
    device: str | None = None
    """cpu, cuda, cuda:1, mps. [default: cpu]"""
    seed: int | None = None
    """Of everything random. [default: 0]"""


@Parameter(name="*")
@dataclass(kw_only=True)
class Running:
    """What decides where things go and how much is said."""

    out: Path | None = None
    """Folder for run.json, tensors.safetensors and report.html. [default: a new one in runs]"""
    config: Path | None = None
    """YAML file with settings; flags override it."""
    print_config: Flag = False
    """Print the settings as YAML and stop."""
    resume: Flag = False
    """Continue the run in --out, if there is one."""
    overwrite: Flag = False
    """Replace the run in --out."""
    quiet: Flag = False
    """Print errors only."""
    json: Flag = False
    """Print the metrics as JSON."""


def _go(kind: str, settings: Settings, running: Running, **more: Any) -> int:
    from .config import load

    config = load(kind, {**asdict(settings), **more}, running.config)
    if running.print_config:
        print(config.to_yaml(), end="")
        return 0
    from .cluster import joined, processes
    from .errors import UsageError
    from .runner import run_attack

    if running.out is None and processes() > 1:
        raise UsageError("`--out` must be given where several processes share the work, got none.")
    with joined() as rank:
        return run_attack(
            config,
            running.out,
            resume=running.resume,
            overwrite=running.overwrite,
            quiet=running.quiet or rank != 0,
            as_json=running.json,
            rank=rank,
        )


@app.command(
    help_epilogue=_examples(
        "ensemble --models A,C,D --eps 0.2 --baseline average --limit 200",
        "ensemble --data photos/ --models a.safetensors:A,my.nets:big --norm l2 --eps 3",
        "ensemble --config mine.yaml --eps 8/255 --out runs/mine",
    )
)
def ensemble(*, settings: Settings | None = None, running: Running | None = None) -> int:
    """One perturbation per image that fools several models at once."""
    return _go("ensemble", settings or Settings(), running or Running())


@app.command(
    help_epilogue=_examples(
        "universal --data cifar10-sample --models A --group-size 3 --eps 4/255",
        "universal --models C --group-size 3 --by-class --box clip",
    )
)
def universal(
    *,
    group_size: int | None = None,
    by_class: Annotated[bool | None, Parameter(negative=())] = None,
    box: str | None = None,
    settings: Settings | None = None,
    running: Running | None = None,
) -> int:
    """One perturbation per group of images that fools one model on all of them.

    Args:
        group_size: Images per group. [default: 5]
        by_class: Put images of one class only into a group.
        box: intersection keeps every perturbed image in range by the perturbation itself, clip clips
            each image. [default: intersection]
        settings: What decides the numbers.
        running: Where things go and how much is said.
    """
    more = {"group_size": group_size, "by_class": by_class, "box": box}
    return _go("universal", settings or Settings(), running or Running(), **more)


@app.command(
    help_epilogue=_examples(
        "transform --data cifar10-sample --models A --eps 0.03",
        "transform --models C --eps 0.2 --transforms identity,hflip,rotate:30 --baseline average",
    )
)
def transform(
    *,
    transforms: str | None = None,
    samples: int | None = None,
    settings: Settings | None = None,
    running: Running | None = None,
) -> int:
    """One perturbation per image that fools the model through several transformations.

    Args:
        transforms: paper, paper-random, or names separated by commas: identity, hflip, vflip,
            brightness:0.1, gamma:1.3, crop_resize:0.8, rotate:30. [default: paper]
        samples: Draws per step of random transformations. [default: 1]
        settings: What decides the numbers.
        running: Where things go and how much is said.
    """
    more = {"transforms": transforms, "samples": samples}
    return _go("transform", settings or Settings(), running or Running(), **more)
