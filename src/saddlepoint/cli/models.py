"""`saddlepoint models`: the networks that are shipped, and whether they are as good as they say."""

from cyclopts import App

__all__ = ["app"]

app = App(name="models", help="The networks that come with trained parameters.")

# Rounding differs between machines and thread counts; a few borderline images may change sides.
TOLERANCE = 0.1


@app.command(name="list")
def show() -> int:
    """List the shipped networks with the accuracies of their cards.

    "union" is the accuracy under all threats that a network was trained against, suite quick.
    """
    from saddlepoint import models

    print(f"{'name':<12}{'network':>17}{'accuracy':>10}{'FGSM':>8}{'union':>8}  command")
    for name in models.shipped():
        card = models.card(name)
        union = "-" if card.robust is None else f"{card.robust['quick']['union']:.1f}%"
        figures = f"{card.accuracy:>9.2f}%{card.fgsm_accuracy:>7.2f}%{union:>8}"
        print(f"{name:<12}{card.architecture:>17}{figures}  {card.command}")
    return 0


@app.command
def check(*names: str, limit: int | None = None) -> int:
    """Measure clean and FGSM accuracy on the test set and compare them with the cards.

    Args:
        names: Networks to check; all shipped ones if none is given.
        limit: Use the first so many test images only; nothing is then compared.
    """
    from saddlepoint import data, models

    from . import progress

    print(f"{'name':<12}{'accuracy':>10}{'card':>9}{'FGSM':>10}{'card':>9}")
    wrong = 0
    for name in names or models.shipped():
        card, model = models.card(name), models.load(name)
        with progress.downloads() as report:
            x, y = data.load(card.data, "test", limit, progress=report)
        accuracy = models.measure(model, x, y, eps=card.fgsm_eps)
        clean, fgsm = 100 * accuracy.clean, 100 * accuracy.fgsm
        gap = max(abs(clean - card.accuracy), abs(fgsm - card.fgsm_accuracy))
        verdict = "" if limit is not None else "agrees" if gap <= TOLERANCE else "DIFFERS"
        wrong += verdict == "DIFFERS"
        figures = f"{clean:>9.2f}%{card.accuracy:>8.2f}%{fgsm:>9.2f}%{card.fgsm_accuracy:>8.2f}%"
        print(f"{name:<12}{figures}  {verdict}", flush=True)
    return 1 if wrong else 0
