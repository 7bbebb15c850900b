"""Checks that attack: is the white-box attack as strong as it must be?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

from saddlepoint.calls import call
from saddlepoint.display import distance_text, radius_text
from saddlepoint.doctor.subject import WITHOUT_GRADIENTS, Finding, Subject
from saddlepoint.losses import fooled
from saddlepoint.problems import Model
from saddlepoint.solver.search import random_search

__all__ = ["CHECKS", "transfer"]

_DO = f"do not report this robustness; attack a differentiable copy (BPDA) or {WITHOUT_GRADIENTS}."


def monotone(subject: Subject) -> Finding:
    """Robust accuracy must not rise with the radius."""
    radii = [min(1.0, subject.eps * factor) for factor in (0.25, 0.5, 1.0, 2.0)]
    shares = [float(subject.not_fooled(eps).double().mean()) for eps in radii]
    # Parts of a radius that was given in steps of 8-bit pixels are told in them too.
    told = [distance_text(e, subject.eps) if e < subject.eps else radius_text(e) for e in radii]
    shown = ", ".join(f"{share:.0%} at {e}" for e, share in zip(told, shares, strict=True))
    rises = [later - sooner for sooner, later in pairwise(shares)]
    if max(rises) > _slack(subject):
        return Finding(
            "radius",
            "fail",
            f"robust accuracy rises with the radius: {shown}.",
            "a larger ball contains the smaller one: the attack is being misled, as by masked gradients.",
            _DO,
        )
    return Finding(
        "radius", "ok", f"robust accuracy: {shown}.", "it falls as the radius grows, as it must."
    )


def unbounded(subject: Subject) -> Finding:
    """Without a bound every image can become any other: accuracy must go to zero."""
    left = float(subject.not_fooled(1.0).double().mean())
    if left > _slack(subject):
        return Finding(
            "unbounded",
            "fail",
            f"{left:.0%} of the images withstand an attack without any bound.",
            "any image can be turned into any other, so that the attack fails for lack of gradients.",
            _DO,
        )
    return Finding(
        "unbounded",
        "ok",
        f"{left:.0%} of the images withstand an attack without any bound.",
        "with enough room the attack always succeeds, as it must.",
    )


def gradient_free(subject: Subject) -> Finding:
    """Random search knows less than gradients and must not do better."""
    tried = random_search(
        subject.call,
        subject.x,
        subject.y,
        subject.eps,
        queries=subject.queries,
        seed=subject.seed,
        rows=torch.arange(len(subject.x), device=subject.x.device),
    )
    found = subject.broken(tried, subject.ball)
    white = ~subject.not_fooled(subject.eps)
    extra = int((found & ~white).sum())
    share, white_share = float(found.double().mean()), float(white.double().mean())
    saw = (
        f"random search with {subject.queries} queries fools {share:.0%}, gradients fool {white_share:.0%} "
        f"at {radius_text(subject.eps)}; {extra} images fall to random search alone."
    )
    if share > white_share + _slack(subject) or extra > 2 * _slack(subject) * len(found):
        return Finding(
            "gradient-free",
            "fail",
            saw,
            "gradients point nowhere useful: they are masked, shattered or random.",
            _DO,
        )
    return Finding("gradient-free", "ok", saw, "gradients are the better guide, as they should be.")


def transfer(subject: Subject, name: str, reference: Model) -> Finding | None:
    """What fools another model must not fool this one more often than its own gradients do.

    Returns None where the reference does not take these images or does not know them.
    """
    try:
        with torch.no_grad():
            known = (~fooled(call(reference, subject.x), subject.y)).double().mean()
        if float(known) < 0.5:
            return None
        delta = subject.attacker(reference).attack(subject.ball).delta
    except (RuntimeError, ValueError, IndexError):
        return None
    found = subject.broken(subject.x + delta, subject.ball)
    white = ~subject.not_fooled(subject.eps)
    share, white_share = float(found.double().mean()), float(white.double().mean())
    saw = (
        f"perturbations made for {name} fool {share:.0%}, its own gradients {white_share:.0%} "
        f"at {radius_text(subject.eps)}."
    )
    if share > white_share + _slack(subject):
        return Finding(
            "transfer",
            "fail",
            saw,
            "another model's gradients are better than its own: they are masked.",
            "show it what fools other models too: attack ensemble --models OTHER --victims THIS (in Python "
            "sp.success_rates(sp.Ensemble([model], x, y), result.delta)); " + _DO,
        )
    return Finding("transfer", "ok", saw, "white-box is the stronger attack, as it should be.")


def _slack(subject: Subject) -> float:
    """Two images, or three percent: less than that is chance."""
    return max(2.5 / len(subject.x), 0.03)


CHECKS: tuple[Callable[[Subject], Finding], ...] = (monotone, unbounded, gradient_free)
