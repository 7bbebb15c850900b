"""What a domain is: a model, an image, a transformation, or a pair of them (Section 3).

The contract of the whole library. B rows are independent problems, K is the number of domains.

    delta            (B, ...)        one perturbation per row
    problem.logits   (B, K, C)       what every domain says about the perturbed row
    problem.labels   (B, K)          what is attacked: true classes, targets, or the models' own answers
    problem.truth    (B, K)          what success is counted against; differs only from the models' own answers
    problem.lower, problem.upper     the box, broadcastable to delta, lower <= 0 <= upper
    loss(logits, labels)  (B, K)     small = fooled; delta descends, the weights ascend
    weights          (B, K)          on the simplex, one vector per row

Nothing is ever averaged over B. Models map inputs in [0, 1] to logits and do their own normalisation; they are
called, never changed.
"""

from saddlepoint.calls import Model, check_eval_mode
from saddlepoint.problems.abstract import AbstractProblem
from saddlepoint.problems.inputs import Array, check_targets
from saddlepoint.problems.parts import Parts
from saddlepoint.problems.patched import Patched
from saddlepoint.problems.universal import Universal
from saddlepoint.problems.views import Ensemble, Product, Transformed

__all__ = [
    "AbstractProblem",
    "Array",
    "Ensemble",
    "Model",
    "Parts",
    "Patched",
    "Product",
    "Transformed",
    "Universal",
    "check_eval_mode",
    "check_targets",
]
