"""`saddlepoint models`: the networks that are shipped, and whether they are as good as they say."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from saddlepoint.runs.plain import printable

from .errors import usage
from .flags import Flag

__all__ = ["app"]

app = App(
    name="models",
    help="The networks that come with trained parameters.",
    help_epilogue="Example: saddlepoint models list",
)

# Rounding differs between machines and thread counts; a few borderline images may change sides.
TOLERANCE = 0.1


@app.command(name="list", help_epilogue="Example: saddlepoint models list")
def show() -> int:
    """List the shipped networks with the accuracies of their cards.

    "union" is the accuracy under all threats that a network was trained against, suite quick, and
    the number of images. The exit code is 1 if a card is damaged.
    """
    from saddlepoint import models

    print(f"{'name':<15}{'network':>17}{'accuracy':>10}{'FGSM':>8}{'union (images)':>16}  command")
    damaged = False
    for name in models.shipped():
        try:
            card = models.card(name)
        except ValueError as error:
            damaged = True
            print(printable(f"{name:<15}  damaged card: {error}"))
            continue
        judged = (card.robust or {}).get("quick")
        union = f"{judged['union']:.1f}% ({judged['images']})" if judged else "-"
        figures = f"{card.accuracy:>9.2f}%{card.fgsm_accuracy:>7.2f}%{union:>16}"
        # Others may have written names and cards.
        print(printable(f"{name:<15}{card.architecture:>17}{figures}  {card.command}"))
    return 1 if damaged else 0


@app.command(help_epilogue="Example: saddlepoint models check mnist-a mnist-b")
def check(*names: str, limit: int | None = None) -> int:
    """Measure clean and FGSM accuracy on the test set and compare them with the cards.

    Args:
        names: Networks to check; all shipped ones if none is given.
        limit: Use the first so many test images only; nothing is then compared. [default: as many as the card]
    """
    from saddlepoint import models
    from saddlepoint.runs.packing import images_of_card

    from . import progress

    print(f"{'name':<15}{'accuracy':>10}{'card':>9}{'FGSM':>10}{'card':>9}")
    wrong = 0
    for name in names or models.shipped():
        card, model = models.card(name), models.channels_last(models.load(name))
        with usage(), progress.downloads() as report:
            x, y = images_of_card(card, name, card.test_images if limit is None else limit, report)
        accuracy = models.measure(model, x, y, eps=card.fgsm_eps)
        clean, fgsm = 100 * accuracy.clean, 100 * accuracy.fgsm
        gap = max(abs(clean - card.accuracy), abs(fgsm - card.fgsm_accuracy))
        agrees = gap <= TOLERANCE and len(y) == card.test_images
        verdict = "" if limit is not None else "agrees" if agrees else "DIFFERS"
        wrong += verdict == "DIFFERS"
        figures = f"{clean:>9.2f}%{card.accuracy:>8.2f}%{fgsm:>9.2f}%{card.fgsm_accuracy:>8.2f}%"
        print(printable(f"{name:<15}{figures}  {verdict}"), flush=True)
    return 1 if wrong else 0


@app.command(help_epilogue="Example: saddlepoint models pack runs/e cifar10-e --bits 8")
def pack(
    run: Path,
    name: str,
    *,
    out: Path = Path("weights"),
    bits: Annotated[Literal[16, 8], Parameter(negative=())] = 16,
    limit: int | None = None,
    overwrite: Flag = False,
) -> int:
    """Keep a trained network with 16 or 8 bits per entry, and measure what is kept.

    Args:
        run: Folder of a training, with model.safetensors and model.json.
        name: What `sp.models.load` and --models call it, such as cifar10-e.
        out: Folder for NAME.safetensors and NAME.json; looked through are `weights` of a checkout and the one
            that SADDLEPOINT_WEIGHTS names.
        bits: 16 is float16; 8 has a scale for every channel besides.
        limit: Measure on the first so many test images. [default: all]
        overwrite: Replace the network of that name which is there.
    """
    from saddlepoint.runs.packing import pack_network

    from . import progress

    with usage(), progress.downloads() as report:
        kept = pack_network(run, name, out, bits, limit=limit, overwrite=overwrite, progress=report)
    size, card = kept.file.stat().st_size / 1e6, kept.card
    print(
        f"{kept.file}: {size:.1f} MB, of {card.test_images} test images {card.accuracy:.2f} % right as it is "
        f"kept, {kept.before:.2f} % before"
    )
    return 0
