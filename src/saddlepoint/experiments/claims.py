"""The sentences of the paper that are claims, with what the stored runs say of each.

Every number is taken from the summaries; so is the verdict, by a rule that each check states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

from saddlepoint.experiments import claim_checks as checks
from saddlepoint.experiments import claim_defence as defence
from saddlepoint.experiments import claim_ensembles as ensembles
from saddlepoint.experiments import claim_groups as groups
from saddlepoint.experiments import claim_heuristics as heuristics
from saddlepoint.experiments import claim_measures as measures
from saddlepoint.experiments.claim_checks import APGDA, ATTACK, Finding, Summaries, Verdict
from saddlepoint.report.tables import Column, Table

__all__ = ["CLAIMS", "Claim", "claims_table", "judged_twice"]


class Claim(NamedTuple):
    """A claim: where it stands, the paper's words in short, and how the stored runs are asked about it."""

    where: str
    says: str
    check: Callable[[Summaries], Finding]


def _lift(where: str, says: str, name: str, mean: float, only: str = "") -> Claim:
    return Claim(where, says, partial(checks.mean_lift, name=name, reported=mean, only=only))


_PAPER = "ensemble-mnist-paper"
_BY_RECIPE = "here networks by the paper's recipe (B: 15 of its 50 epochs)"

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "4.1",
        "The attack is not affected largely by the choice of alpha, beta, gamma",
        measures.sensitivity,
    ),
    _lift("4.2, Table 1", "MNIST ensembles: ASR_all rises by 40.79 %", "ensemble-mnist", 40.79),
    _lift("4.2, Table 1", f"The same; {_BY_RECIPE}", _PAPER, 40.79),
    _lift(
        "1 and 4.2, Table 3",
        "CIFAR-10 ensembles: by 17.48 % (appendix and rows of the table: 19.27 %)",
        "ensemble-cifar10",
        17.48,
    ),
    _lift(
        "Appendix, Table A3",
        "CIFAR-10 networks A, E, F, H: by 15.69 %",
        "ensemble-cifar10-deep",
        15.69,
    ),
    Claim(
        "4.2, Table 1",
        "linf on MNIST: ASR of the hard networks C, D rises by 31.47 points, that of A, B falls by 0.86",
        ensembles.hard_against_easy,
    ),
    Claim(
        "4.2, Table 1", f"The same; {_BY_RECIPE}", partial(ensembles.hard_against_easy, name=_PAPER)
    ),
    Claim(
        "4.2, Figure 1",
        "The order of the weights is that of the robustness of the networks",
        ensembles.order_of_weights,
    ),
    Claim(
        "4.2, Figure 1", f"The same; {_BY_RECIPE}", partial(ensembles.order_of_weights, name=_PAPER)
    ),
    Claim(
        "4.2, Figure 1",
        "The weights converge after a small number of iterations",
        ensembles.settling,
    ),
    Claim(
        "4.2, Figure 1",
        "The weight of network D first rises to 0.45 and then falls to 0.3",
        ensembles.path_of_weights,
    ),
    Claim(
        "4.2, Figure 2",
        "Min-max is consistently better than the average, or on par, as the radius varies",
        ensembles.radii,
    ),
    Claim(
        "Appendix, ASR against eps",
        "The gain is more significant at moderate radii: MNIST [0.15, 0.25], CIFAR-10 [0.03, 0.05]",
        ensembles.moderate_radii,
    ),
    Claim(
        "4.2, Tables 2 and 4",
        "Min-max is above every heuristic weighting of the tables, w_clip with the threshold 40 among them",
        heuristics.above_heuristics,
    ),
    Claim(
        "3.1 and 4.2, Tables 2 and 4",
        "Even carefully tuned, clipping is outperformed",
        heuristics.tuned_clipping,
    ),
    Claim(
        "4.2, Tables 2 and 4",
        "The converged weights of min-max, held fixed, lose much of its gain",
        heuristics.static_weights,
    ),
    _lift(
        "1 and 4.3, Table 5",
        "Universal perturbations of K = 5 CIFAR-10 images: by 35.21 %",
        "universal-cifar10",
        35.21,
        "k5",
    ),
    _lift(
        "4.3",
        "Universal perturbations of K = 5 MNIST images: by 42.63 %; here random groups, as in the text",
        "universal-mnist",
        42.63,
        "k5",
    ),
    _lift(
        "4.3",
        "The same; here groups of one digit, as in the authors' code",
        "universal-mnist-digits",
        42.63,
        "k5",
    ),
    Claim("4.3, Table 5", "Min-max has the higher ASR_all for every K", groups.every_group_size),
    Claim(
        "4.3",
        "Universal perturbations of min-max fool hard images, on which the average fails",
        groups.hard_images,
    ),
    Claim(
        "4.3, Tables 6, A7, A8",
        "The weight of an image is highly related to its minimum distortion",
        groups.distances,
    ),
    Claim(
        "4.3, Table 6, and appendix",
        "A large weight belongs to a letter with a clear appearance, a bold one for example",
        groups.bold_letters,
    ),
    Claim(
        "Appendix, Tables A7, A8",
        "The weights of images are highly correlated across norms",
        groups.across_norms,
    ),
    _lift("1 and 4.4, Table 7", "Six transformations on CIFAR-10: by 9.39 %", "transform", 9.39),
    _lift("Appendix, Table A4", "Random transformations: by 4.31 %", "transform-random", 4.31),
    _lift(
        "Appendix, Table A5",
        "Seven transformations, rotation among them, on CIFAR-10: by 8.22 % (mean of its rows)",
        "transform-rotation",
        8.22,
    ),
    Claim("3, Theorem 1", "O(1/T) convergence to a stationary point", measures.rate),
    Claim(
        "5.2, MNIST",
        "AMPGD outperforms MSD consistently, on MNIST by 4 to 6 %",
        partial(defence.ahead_of, table="race", reported=4.0),
    ),
    *(
        Claim(
            "5 and 5.2, MNIST",
            f"AMPGD obtains better performance than prior works, here {other}",
            partial(defence.ahead_of, table="race", other=other),
        )
        for other in ("MAX", "AVG")
    ),
    Claim(
        "5.2, CIFAR-10",
        "AMPGD outperforms MSD consistently, on CIFAR-10 by 2 %",
        partial(defence.ahead_of, table="cifar10", reported=2.0),
    ),
    Claim(
        "5.2",
        "With AMPGD the gap of robust accuracy between the three attacks is much smaller (MNIST)",
        partial(defence.gap_of_threats, table="race"),
    ),
    Claim(
        "Appendix, defences",
        "AMPGD emphasises the strongest adversary, linf, more than MSD (MNIST)",
        partial(defence.emphasis_on_linf, table="race"),
    ),
    Claim("5.2", "The weight of l2 rises with its radius", defence.weight_of_l2),
    Claim(
        "5.2",
        "Generalised AT makes networks robust to several perturbations, better than AT against a single threat",
        partial(defence.ahead_of_one_threat, table="cifar10"),
    ),
    Claim(
        "5.3",
        "APGDA performs reasonably well with the same alpha as standard PGD",
        measures.same_alpha,
    ),
    Claim(
        "5.3 and Figure A5",
        "Any gamma in [0, 10] does reasonably well; the best is near 4; too small or too large is weaker",
        measures.gammas,
    ),
    Claim("5.3", "beta = 1/T does well", measures.betas),
    Claim("5.3", "APGDA takes 1.31 times the time of average PGD", measures.cost),
    Claim(
        "5.3",
        "AMPGD takes 1.15 times the time of average or max training, at most",
        measures.training_cost,
    ),
    Claim("6", "Domain weights stabilize the training procedure", defence.stable_training),
)
"""In the order of the paper."""


def judged_twice(claim: Claim, summaries: Summaries) -> Finding:
    """What `apgda` says of a claim, and that `attack` says otherwise where it rests on as much.

    Args:
        claim: Which one.
        summaries: Of the folder.
    """
    found = claim.check(replace(summaries, source=APGDA))
    other = claim.check(replace(summaries, source=ATTACK))
    unknown = other.verdict.startswith("not ") or found.verdict.startswith("not ")
    if unknown or other.verdict == found.verdict or (other.less and not found.less):
        return found
    return found._replace(why=f"{found.why}; by attack it {other.verdict}: {other.ours}")


def claims_table(store: Path) -> tuple[Table, str]:
    """Every claim with our numbers, the verdict, and why; and a sentence on how many there are of each verdict.

    Args:
        store: Folder with summaries.
    """
    summaries = Summaries(store)
    lines = []
    for claim in CLAIMS:
        found = judged_twice(claim, summaries)
        lines.append((claim.where, claim.says, found.ours, found.verdict, found.why))
    columns = ("In the paper", "It says", "Ours", "Verdict", "Why, and on what")
    verdicts = [verdict for _, _, _, verdict, _ in lines]
    counts = (f"{each} {n}" for each in get_args(Verdict) if (n := verdicts.count(each)))
    said = f"Verdicts of the {len(lines)} lines: {', '.join(counts)}."
    return Table("Claims", tuple(Column(name) for name in columns), tuple(lines)), said
