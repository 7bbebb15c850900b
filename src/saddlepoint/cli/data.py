"""`saddlepoint data`: fetch data sets before they are needed."""

from cyclopts import App

from .errors import UsageError, library

__all__ = ["app"]

app = App(
    name="data",
    help="Data sets: list them, fetch them.",
    help_epilogue="Example: saddlepoint data fetch mnist",
)


@app.command(help_epilogue="Example: saddlepoint data fetch mnist cifar10")
def fetch(*names: str, split: str = "both") -> int:
    """Get data sets from where they are published, check them, and keep them in the user's cache.

    Args:
        names: mnist, cifar10, fashion-mnist; mnist-sample and cifar10-sample are there already.
        split: train, test or both.
    """
    from saddlepoint import data as room

    from . import progress

    if not names:
        raise UsageError(f"`data fetch` must be given a name out of {', '.join(room.NAMES)}.")
    unknown = [name for name in names if name not in room.NAMES]
    if unknown:
        raise UsageError(
            f"`data fetch` must be one of {', '.join(room.NAMES)}, got {unknown[0]!r}."
        )
    if split not in ("train", "test", "both"):
        raise UsageError(f"`--split` must be train, test or both, got {split!r}.")
    for name in names:
        for part in ("test",) if name.endswith("-sample") else ("train", "test"):
            if split not in ("both", part):
                continue
            with library(), progress.downloads() as report:
                x, _ = room.load(name, part, progress=report)
            shape = "x".join(str(side) for side in x.shape[1:])
            print(f"{name} {part}: {len(x)} images {shape}")
    return 0


@app.command(name="list", help_epilogue="Example: saddlepoint data list")
def show() -> int:
    """List the names --data takes, and whether the images are on this machine."""
    from saddlepoint import data as room
    from saddlepoint.data.sources import splits_present

    for name in room.NAMES:
        kind = f"embedded, the first {room.SAMPLES.get(name, 0):,} test images"
        if not name.endswith("-sample"):
            there = splits_present(name)
            kind = f"present: {', '.join(there)}" if there else "fetched on first use"
        print(f"{name:<16}{kind}")
    return 0
