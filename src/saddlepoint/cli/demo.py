"""`saddlepoint demo`: the paper's main comparison on images that come with the package."""

from pathlib import Path

from .errors import UsageError, usage
from .flags import Flag, ImagesRunning

__all__ = ["demo"]


def demo(
    *,
    out: Path = Path("runs/demo"),
    resume: Flag = False,
    limit: int = 256,
    precision: str = "float32",
    quiet: Flag = False,
    json: Flag = False,
) -> int:
    """Average against min-max on MNIST: the linf row of the paper's Table 1.

    It takes about a minute on two free cores.

    Four networks, one perturbation per image within linf 0.2, first with equal weights, then with the
    weights the paper's method finds. Both use `attack`, the strong and fast form of the algorithm, so that
    only the weights differ.

    Args:
        out: Folder for run.json, tensors.safetensors and report.html; an old demo there is replaced.
        resume: Continue the demo in --out, if there is one.
        limit: Use the first so many of the 1,000 embedded images.
        precision: What the networks compute in during the search: float32, bfloat16, float16 or auto.
        quiet: Print errors only.
        json: Print the metrics as JSON.
    """
    from saddlepoint import models
    from saddlepoint.runs import texts
    from saddlepoint.runs.settings import EnsembleSettings

    from .attack import run_attack
    from .cluster import first

    # Before the processes of torchrun meet, so that all of them see what is there before one writes.
    _check_folder(out)

    letters = [name[-1].upper() for name in models.shipped() if name[:-1] == "mnist-"]
    flags = {
        "models": [letter for letter in letters if letter in "ABCD"],
        "eps": 0.2,
        "baseline": "average",
        "limit": limit,
        "precision": precision,
    }
    settings = EnsembleSettings.load(flags)
    asked = {"limit": limit, "precision": None if precision == "float32" else precision}
    if not quiet and not json and first():
        names = ", ".join(settings.models)
        print(
            f"{min(limit, 1000)} test images of MNIST, networks {names}, linf 0.2: one perturbation "
            "per image\nagainst all of them, with equal weights (average) and with min-max weights.\n"
        )
    running = ImagesRunning(out=out, resume=resume, overwrite=not resume, quiet=quiet, json=json)
    return run_attack(settings, running, command=texts.line(["demo"], asked))


def _check_folder(out: Path) -> None:
    """Refuse a folder with a run that is not a demo's: it is somebody's work."""
    from saddlepoint.runs import RECORD, Run

    if not (out / RECORD).is_file():
        return
    with usage():
        command = Run.read(out).command
    if not f"{command} ".startswith("saddlepoint demo "):
        raise UsageError(
            f"`--out` must hold no run but an old demo, got {str(out)!r} with the run of `{command}`; choose "
            "another folder."
        )
