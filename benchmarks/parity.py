"""`attack` with one domain beside foolbox's PGD and AutoAttack's APGD at equal gradient evaluations.

``python -m benchmarks.parity`` prints the table: robust accuracy on the shipped MNIST networks, in per cent,
lower = stronger attack. With ``--first 3000 --images 1000 --norm linf`` it is that of other test images, which
are downloaded if need be, and of one norm. Verdicts are `judge`'s for all. The figures compare where robust
accuracy is between 5 and 95 %: elsewhere nothing can differ.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator

from torch import Tensor

import saddlepoint as sp
from saddlepoint.evaluation import AbstractAttack, OurAttack, robust_accuracy
from saddlepoint.evaluation.autoattacks import APGD
from saddlepoint.evaluation.foolbox_attacks import FoolboxAttack

from .timing import Figure, at_most

GRADIENTS = 50
IMAGES = 500
NETWORKS = ("mnist-a", "mnist-c", "mnist-d")
THREATS = {
    "linf 0.1": sp.LpBall(math.inf, 0.1),
    "linf 0.15": sp.LpBall(math.inf, 0.15),
    "linf 0.2": sp.LpBall(math.inf, 0.2),
    "l2 1.5": sp.LpBall(2, 1.5),
    "l1 8": sp.LpBall(1, 8.0),
}
FOOLBOX = {
    math.inf: "LinfProjectedGradientDescentAttack",
    2.0: "L2ProjectedGradientDescentAttack",
    1.0: "SparseL1DescentAttack",  # its l1 PGD rescales instead of projecting
}
OURS = "ours"


def attacks(p: float) -> list[AbstractAttack]:
    # All descend on cross-entropy but the last. Ours takes two restarts of 25 evaluations, the second from a
    # random point. Foolbox and APGD evaluate the gradient once per step, APGD once more at its start.
    return [
        OurAttack(OURS, sp.neg_cross_entropy, GRADIENTS // 2, restarts=2),
        FoolboxAttack("foolbox pgd", FOOLBOX[p], {"steps": GRADIENTS}),
        APGD("apgd-ce", steps=GRADIENTS - 1),
        APGD("apgd-dlr", "dlr", steps=GRADIENTS - 1),
    ]


def embedded() -> tuple[Tensor, Tensor]:
    # The settings of ours were chosen on the first 300 images; these are others.
    x, y = sp.data.sample("mnist")
    return x[300 : 300 + IMAGES], y[300 : 300 + IMAGES]


def accuracies(
    x: Tensor, y: Tensor, norm: str = "l"
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Network, threat, and robust accuracy in per cent by attack."""
    for network in NETWORKS:
        model = sp.models.load(network)
        for threat, ball in THREATS.items():
            if not threat.startswith(norm):
                continue
            suite = {ball.p: attacks(ball.p)}
            result = robust_accuracy(model, x, y, {threat: ball}, suite, every_attack=True)
            accurate = {
                each.attack: 100 * (result.correct & ~each.broken).double().mean().item()
                for each in result.outcomes
            }
            yield network, threat, accurate


def figures() -> Iterator[Figure]:
    for network, threat, accurate in accuracies(*embedded()):
        theirs = min(accurate["foolbox pgd"], accurate["apgd-ce"])
        if 5 <= theirs <= 95:
            # One image is 0.2 points; random starts alone move the numbers by more than that.
            yield at_most(
                f"{network} {threat}: ours minus theirs, points", accurate[OURS] - theirs, 1.0
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parity")
    parser.add_argument("--first", type=int, help="number of the first test image")
    parser.add_argument("--images", type=int, default=IMAGES, help="how many, with --first")
    parser.add_argument("--norm", choices=["linf", "l2", "l1"], default="l", help="one norm only")
    words = parser.parse_args()
    x, y = embedded()
    if words.first is not None:
        test = sp.data.load("mnist", "test")
        x, y = (tensor[words.first : words.first + words.images] for tensor in test)
    head: list[str] = []
    for network, threat, accurate in accuracies(x, y, words.norm):
        if not head:
            head = ["network", "threat", *accurate]
            print(f"{len(x)} images, {GRADIENTS} gradient evaluations; robust accuracy, %\n")
            print("| " + " | ".join(head) + " |")
            print("|" + "---|" * 2 + "---:|" * len(accurate))
        least = min(accurate.values())
        cells = (f"**{v:.1f}**" if v == least else f"{v:.1f}" for v in accurate.values())
        print("| " + " | ".join((network, threat, *cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
