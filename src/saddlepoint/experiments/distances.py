"""How hard an image is on its own: its Carlini-Wagner distance and its smallest linf radius."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn

from saddlepoint.evaluation import smallest_radius as joint_radius
from saddlepoint.evaluation.libraries import library
from saddlepoint.evaluation.pages import batches_of
from saddlepoint.evaluation.verdicts import is_right
from saddlepoint.problems import Ensemble

__all__ = ["carlini_wagner_distance", "smallest_radius"]


def carlini_wagner_distance(
    model: nn.Module, x: Tensor, y: Tensor, *, searches: int = 9, steps: int = 300
) -> Tensor:
    """l2 distance from each image to the adversarial one that the Carlini-Wagner attack finds.

    What foolbox returns is judged again here: the image must be in [0, 1] and misclassified when we evaluate
    it, and the distance is the one we compute. Its answer after a failure is not an adversarial image.

    Args:
        model: In evaluation mode.
        x: Images, (N, ...), in [0, 1].
        y: Labels, (N,).
        searches: Binary search steps over the trade-off constant.
        steps: Steps of the optimiser for each constant.

    Returns:
        Distances, (N,), float64: 0 for images that are misclassified as they are, inf where the attack fails.

    Raises:
        MissingLibraryError: foolbox is not installed.
    """
    foolbox = library("foolbox", "the Carlini-Wagner distance")
    distance = torch.zeros(len(x), dtype=torch.float64)
    right = is_right(model, x, y).nonzero().flatten()
    for rows in batches_of(right, 256):
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # foolbox's own, about torch and eagerpy
            wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=x.device)
            attacker = foolbox.attacks.L2CarliniWagnerAttack(
                binary_search_steps=searches, steps=steps
            )
            _, found, _ = attacker(wrapped, x[rows], y[rows], epsilons=None)
        found = found.detach().clamp(0, 1)
        length = (found - x[rows]).flatten(1).double().norm(dim=1).cpu()
        wrong = ~is_right(model, found, y[rows]).cpu()
        distance[rows.cpu()] = torch.where(wrong, length, math.inf)
    return distance


def smallest_radius(
    model: nn.Module, x: Tensor, y: Tensor, *, steps: int = 20, searches: int = 10, seed: int = 0
) -> Tensor:
    """Smallest linf radius in which an attack on each image alone succeeds, by binary search in [0, 1].

    Args:
        model: In evaluation mode.
        x: Images, (N, ...), in [0, 1].
        y: Labels, (N,).
        steps: Of every attack.
        searches: Halvings: the radius is found to 2 ** -searches.
        seed: Of the attack.

    Returns:
        Radii, (N,), float64, at which the attack did succeed: 0 for images that are misclassified as they
        are, inf where it fails even at 1.

    Example:
        >>> model = nn.Linear(1, 2, bias=False).eval()
        >>> _ = model.weight.data.copy_(torch.tensor([[1.0], [-1.0]]))
        >>> bias = nn.Sequential(nn.Linear(1, 1), model).eval()  # the sign of x - 0.25
        >>> _ = bias[0].weight.data.fill_(1.0), bias[0].bias.data.fill_(-0.25)
        >>> round(smallest_radius(bias, torch.tensor([[0.5]]), torch.tensor([0])).item(), 2)
        0.25
    """
    problem = Ensemble([model], x, y)
    return joint_radius(problem, math.inf, steps=steps, searches=searches, seed=seed)
