"""Is this model fit to be evaluated? Checks that tell a robust model from one that only looks so.

An attack that fails proves nothing if the model masks its gradients, answers at random or expects other
inputs (Athalye et al., 2018; Carlini et al., 2019). Every check says what it saw, what that usually means and
what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from saddlepoint.behind import keeping_buffers, keeping_modes, keeping_random
from saddlepoint.doctor import behaviour, strength
from saddlepoint.doctor.subject import Finding, Findings, Status, Subject, worst
from saddlepoint.evaluation.failures import reason
from saddlepoint.loaders import batches
from saddlepoint.models.own_code import place_of
from saddlepoint.problems import Model
from saddlepoint.problems.inputs import Data, Numbers
from saddlepoint.rounding import full_precision
from saddlepoint.score_models import has_gradient

__all__ = ["Finding", "Findings", "Status", "examine", "worst"]

_FIRST = 64  # images of a loader that are looked at


@full_precision()
def examine(
    model: Model,
    x: Data,
    y: Numbers | None = None,
    *,
    eps: float = 8 / 255,
    steps: int = 20,
    queries: int = 100,
    references: Mapping[str, Model] | None = None,
    seed: int = 0,
    callback: Callable[[Finding], None] | None = None,
) -> Findings:
    """Examine a classifier. The model, its modes and the global random state are left as they were.

    Costs about 7 * steps gradient evaluations and `queries` forward passes per image, fewer where the
    attacks succeed early.

    Args:
        model: Maps images in [0, 1] to logits (B, C).
        x: A few dozen images, (B, ...), in [0, 1]; or a DataLoader or a data set in place of `x` and `y`, of
            which the first 64 are taken.
        y: Their classes, (B,).
        eps: An linf radius at which the model is supposed to be attackable.
        steps: Of every attack.
        queries: Of the gradient-free attack.
        references: Other models for the same images, to see whether what fools them fools this one.
        seed: Of noise and random search.
        callback: Called with every finding as soon as it is there.

    Returns:
        Findings, in the order of the checks. Where images or outputs are unusable, only that one; of a model
        that `saddlepoint.scores` declares, those that need no gradient.

    Raises:
        ValueError: `eps` or `steps` out of range, or no image.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3), torch.nn.Softmax(-1))
        >>> x, y = torch.rand(8, 1, 4, 4), torch.zeros(8, dtype=torch.long)
        >>> findings = examine(model.eval(), x, y, eps=0.1)
        >>> next(f.status for f in findings if f.name == "outputs")
        'fail'
    """
    if not 0 < eps <= 1:
        raise ValueError(f"`eps` must be in (0, 1], got {eps}.")
    if steps < 1 or queries < 1:
        raise ValueError(f"`steps` and `queries` must be >= 1, got {steps} and {queries}.")
    if y is None:
        x, y = next(batches(x, _FIRST), (torch.empty(0), torch.empty(0)))
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    if x.shape[0] == 0 or y.shape != x.shape[:1]:
        raise ValueError(
            f"`y` must have one label per image, got {tuple(y.shape)} for {tuple(x.shape)}."
        )
    findings = Findings()

    def note(finding: Finding) -> None:
        findings.append(finding)
        if callback is not None:
            callback(finding)

    note(behaviour.mode(model))
    networks = [model] if isinstance(model, nn.Module) else []
    kept = keeping_modes(networks, False), keeping_buffers([model])
    with keeping_random([model], seed), kept[0], kept[1]:
        first = behaviour.inputs(model, x, y)
        note(first)
        if first.status == "fail":
            return findings
        subject = Subject(model, x, y, eps=eps, steps=steps, queries=queries, seed=seed)
        for look in behaviour.CHECKS:
            note(look(subject))
            if look is behaviour.gradients and not has_gradient(model):
                return findings  # all that follows would tell of the same
        try:
            for check in strength.CHECKS:
                note(check(subject))
            for name, reference in (references or {}).items():
                finding = strength.transfer(subject, name, reference)
                if finding is not None:
                    note(finding)
        except Exception as error:  # attacks refuse models, and the user's model may raise anything
            means = (
                "this model cannot be attacked as it is, and nothing is known of its robustness."
            )
            do = "mend what is named, and examine again."
            saw = f"the attack ended in {reason(error)}{place_of(error)}"
            note(Finding("attack", "fail", saw, means, do))
    return findings
