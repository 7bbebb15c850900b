"""Figures, and what the paper says in sentences: steps, radii, alpha, beta, gamma, images, rate, cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from saddlepoint import paper
from saddlepoint.experiments.ensembles import PAPER_RECIPE, ensemble_block
from saddlepoint.experiments.plan import (
    AVERAGE,
    Block,
    Experiment,
    Measurement,
    Row,
    Strategy,
    minmax,
)
from saddlepoint.runs.settings import EnsembleSettings, UniversalSettings

__all__ = ["CURVES"]

_ABCD = ("A", "B", "C", "D")
_ABC = ("A", "B", "C")
_EPS = {
    "mnist": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35),
    "cifar10": (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08),
}
_FAMILIES = {"mnist": PAPER_RECIPE, "cifar10": "cifar10"}
_GAMMAS = tuple(float(gamma) for gamma in range(11))
_SHARES = (0.1, 0.2, 0.5, 1, 2, 5, 10)
_BETAS = tuple(share / paper.STEPS["ensemble"] for share in _SHARES)

_STEPS = Experiment(
    name="steps-mnist",
    title="Ensemble attack on MNIST step by step: success of every network, and weights",
    source="Figure 1",
    limit=600,
    blocks=(ensemble_block("mnist", _ABCD, "linf", family=PAPER_RECIPE),),
    figure="steps",
    labels=("true",),  # losses over the steps are about the class attacked
)


def _radii(data: str, networks: tuple[str, ...], source: str, limit: int) -> Experiment:
    letters, family = "".join(networks).lower(), _FAMILIES[data]
    return Experiment(
        name=f"eps-{data}" if networks == _ABCD else f"eps-{data}-{letters}",
        title=f"Ensemble attack on {data} networks {', '.join(networks)} against the linf radius",
        source=source,
        limit=limit,
        blocks=tuple(
            ensemble_block(data, networks, "linf", eps=eps, family=family) for eps in _EPS[data]
        ),
        figure="eps",
        note="The paper shows curves without numbers; the radii are ours, over its range.",
    )


def _sweep(name: str, rules: Mapping[float, str]) -> Block:
    """The average, and min-max with other numbers, each called by its value."""
    block = ensemble_block("mnist", _ABCD, "linf", family=PAPER_RECIPE)
    values = block.settings.model_dump()
    found = {v: EnsembleSettings.load({**values, "rule": rule}) for v, rule in rules.items()}
    rows = [
        Row(Strategy(f"{name}-{value:g}", f"{name} {value:g}", settings.rule))
        for value, settings in found.items()
    ]
    return replace(block, rows=(Row(AVERAGE), *rows))


_GAMMA = Experiment(
    name="gamma-mnist",
    title="Ensemble attack on MNIST against the regularisation of the weights",
    source="Appendix, sensitivity to gamma",
    limit=200,
    blocks=(_sweep("gamma", {g: f"minmax:gamma={g:g}" for g in _GAMMAS}),),
    figure="gamma",
    note="The paper finds the best ASR_all near gamma = 4 and weaker ones at both ends; "
    "equal weights are the limit of large gamma.",
)


_BETA = Experiment(
    name="beta-mnist",
    title="Ensemble attack on MNIST against the step size of the weights",
    source="Section 5.3, text",
    limit=200,
    blocks=(_sweep("beta", {b: f"minmax:step_size={b:g}" for b in _BETAS}),),
    figure="beta",
    note="The paper calls beta = 1/T, here 1/50, a good practice and shows no others; gamma is that of "
    "Table 1.",
)


def _alphas() -> tuple[Block, ...]:
    """The block of Table 1 with other step sizes of the perturbation."""
    block = ensemble_block("mnist", _ABCD, "linf", family=PAPER_RECIPE)
    values = [share * (block.settings.step_size or 0.0) for share in _SHARES]
    return tuple(
        replace(block.but(step_size=a), key=f"alpha-{a:g}", label=f"alpha {a:g}", value=a)
        for a in values
    )


_ALPHA = Experiment(
    name="alpha-mnist",
    title="Ensemble attack on MNIST against the step size of the perturbation",
    source="Section 4.1, text",
    limit=200,
    blocks=_alphas(),
    figure="alpha",
    note="The paper says that its attack does not depend much on alpha, beta and gamma, and shows no other "
    "alpha; linf 0.2, with beta and gamma of Table 1.",
    methods=("apgda",),  # `attack` has steps of its own
)


def _group_block(norm: str, eps: float | None = None) -> Block:
    # The universal attack has parameters of its own for linf only; the others are those of Table 1.
    table = ensemble_block("mnist", _ABCD, norm).settings
    own = paper.radius("universal", "mnist", norm, "C")
    radius = next(r for r in (eps, own, table.eps) if r is not None)
    flags = {"models": "mnist-c", "data": "mnist", "norm": norm, "eps": radius, "by_class": True}
    if paper.parameters("universal", "mnist", norm) is None:
        flags |= {"step_size": table.step_size, "rule": table.rule}
    settings = UniversalSettings.load({**flags, "method": "apgda"})
    label = f"{norm}, eps {settings.eps:g}"
    return Block(key=norm, label=label, settings=settings, rows=(Row(minmax(settings)),))


_IMAGES = Experiment(
    name="image-robustness",
    title="Weights of the images of a group beside how far each has to be moved on its own (MNIST)",
    source="Tables 6, A7 and A8",
    limit=200,
    blocks=tuple(_group_block(norm) for norm in ("l0", "l1", "l2", "linf")),
    measurements=(
        # Images are moved one by one until they are fooled: the radius of the groups plays no part in it.
        Measurement("distances", "minimum distortion", "distances", _group_block("linf", eps=0.2)),
    ),
    figure="images",
    note="The paper names neither the network nor the parameters of l0, l1 and l2: here network C, the radii "
    "and step sizes of Table 1, and for linf those of its universal perturbations of C. Its images cannot be "
    "identified; compared are the rank correlations inside groups, computed from its printed numbers and from "
    "ours.",
    methods=("apgda", "attack"),
    labels=("true",),
)


def _rate(key: str, label: str, norm: str, shrink: float) -> Measurement:
    block = ensemble_block("mnist", ("A", "C", "D"), norm)
    step_size = (block.settings.step_size or 0.0) * shrink
    block = replace(block, key=key, rows=block.rows[1:]).but(steps=400, step_size=step_size)
    return Measurement(key, label, "residuals", block)


_CONVERGENCE = Experiment(
    name="convergence",
    title="Stationarity of the min-max iteration against the number of steps (MNIST A, C, D)",
    source="Theorem 1",
    limit=64,
    measurements=(
        _rate("l2", "l2, alpha 1/10 (Table 1)", "l2", 1.0),
        _rate("l2-tenth", "l2, alpha 1/100", "l2", 0.1),
        _rate("linf", "linf, alpha 1/4 (Table 1)", "linf", 1.0),
        _rate("linf-tenth", "linf, alpha 1/40", "linf", 0.1),
    ),
    figure="convergence",
    note="Measured is S(T), the mean over images of the smallest ||G_delta||^2 + ||G_w||^2 up to step T, with "
    "G_delta = (delta - proj(delta - alpha g)) / alpha and G_w = (proj(w + beta h) - w) / beta the projected "
    "gradients at (delta_t, w_t). The slope is fitted from step 10 on. Theorem 1 says 1/T of stationarity, and "
    "its footnote that this is the norm, which is slope -2 here; read as the squared norm, as usual in such "
    "results, it is -1. It asks for smooth losses; margins of networks with ReLU are not.",
    methods=("apgda",),
    labels=("true",),
)


def _cost(key: str, networks: tuple[str, ...]) -> Measurement:
    block = replace(ensemble_block("mnist", networks, "linf"), key=key)
    return Measurement(key, f"MNIST {', '.join(networks)}, linf 0.2", "times", block, repeats=5)


_COST = Experiment(
    name="cost",
    title="Time of the inner maximisation: min-max over average",
    source="Section 5.3, text",
    limit=64,
    measurements=(_cost("a", ("A",)), _cost("acd", ("A", "C", "D")), _cost("abcd", _ABCD)),
    note="The paper reports 1.31 for its attack.",
    methods=("apgda", "attack"),
    labels=("true",),
)

CURVES = (
    _STEPS,
    _radii("mnist", _ABCD, "Figure 2, left", 150),
    _radii("cifar10", _ABCD, "Figure 2, right", 120),
    _radii("mnist", _ABC, "Appendix, ASR against eps (a)", 150),
    _radii("cifar10", _ABC, "Appendix, ASR against eps (b)", 120),
    _GAMMA,
    _BETA,
    _ALPHA,
    _IMAGES,
    _CONVERGENCE,
    _COST,
)
"""Figures 1 and 2, those of the appendix, the interpretability tables, Theorem 1, and the cost."""
