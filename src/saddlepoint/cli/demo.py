"""`saddlepoint demo`: the paper's main comparison on images that come with the package."""

from pathlib import Path

from .flags import Flag, Running

__all__ = ["demo"]


def demo(
    *,
    out: Path = Path("runs/demo"),
    limit: int = 256,
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
        limit: Use the first so many of the 1,000 embedded images.
        quiet: Print errors only.
        json: Print the metrics as JSON.
    """
    from saddlepoint import models
    from saddlepoint.runs.settings import EnsembleSettings

    from .attack import run_attack
    from .cluster import joined

    letters = [name[-1].upper() for name in models.shipped() if name[:-1] == "mnist-"]
    flags = {
        "models": [letter for letter in letters if letter in "ABCD"],
        "eps": 0.2,
        "baseline": "average",
        "limit": limit,
    }
    settings = EnsembleSettings.load(flags)
    with joined() as rank:
        if not quiet and not json and rank == 0:
            names = ", ".join(settings.models)
            print(
                f"{min(limit, 1000)} test images of MNIST, networks {names}, linf 0.2: one perturbation "
                "per image\nagainst all of them, with equal weights (average) and with min-max weights.\n"
            )
        running = Running(out=out, overwrite=True, quiet=quiet, json=json)
        return run_attack(settings, running, rank=rank)
