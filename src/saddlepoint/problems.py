"""What a domain is: a model, an image, a transformation, or a pair of them (Section 3).

The contract of the whole library. B rows are independent problems, K is the number of domains.

    delta            (B, ...)        one perturbation per row
    problem.logits   (B, K, C)       what every domain says about the perturbed row
    problem.labels   (B, K)          true classes (or targets, in a targeted attack)
    problem.lower, problem.upper     the box, broadcastable to delta, lower <= 0 <= upper
    loss(logits, labels)  (B, K)     small = fooled; delta descends, the weights ascend
    weights          (B, K)          on the simplex, one vector per row

Nothing is ever averaged over B. Models map inputs in [0, 1] to logits and do their own normalisation; they are
called, never changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, Self, TypeVar, final

import torch
from torch import Tensor, nn

from saddlepoint import streams
from saddlepoint.transforms import Transform, from_callable, identity

__all__ = [
    "AbstractProblem",
    "Ensemble",
    "Model",
    "Product",
    "Transformed",
    "Universal",
    "check_eval_mode",
]

Model = Callable[[Tensor], Tensor]
P = TypeVar("P", bound="AbstractProblem")


class AbstractProblem(ABC):
    """B rows, K domains. A new kind of domain sets the attributes and implements the four abstract members.

    Attributes:
        labels: (B, K), int64.
        lower, upper: The box of delta, (B, ...).
        rows: Row numbers, (B,): they follow a row through batching and name its random stream.
        samples: Random draws per evaluation; losses are averaged over them (expectation over
            transformations).
        random: Whether two draws can differ. Rows of random problems are never finished early.
        names: One short name per domain, for reports.
        seed: Of the random draws.
    """

    labels: Tensor
    lower: Tensor
    upper: Tensor
    rows: Tensor
    samples: int = 1
    random: bool = False
    names: tuple[str, ...]
    seed: int = 0

    @abstractmethod
    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        """Logits of one domain, (B, C), at delta, (B, ...); `stream` selects the random draw."""

    @abstractmethod
    def take(self, rows: Tensor) -> Self:
        """The problem of some rows only; `rows` are positions, (n,), int64."""

    @abstractmethod
    def images(self, delta: Tensor) -> Tensor:
        """The perturbed images before any transformation: (B, ...), or (B, K, ...) if they differ by domain."""

    @property
    @abstractmethod
    def models(self) -> Sequence[Model]:
        """The distinct models behind the domains."""

    @property
    def num_domains(self) -> int:
        """K."""
        return self.labels.shape[1]

    def __len__(self) -> int:
        return self.labels.shape[0]

    def logits(self, delta: Tensor, stream: int = 0) -> Tensor:
        """Logits of every domain, (B, K, C)."""
        outputs = [self.domain_logits(delta, k, stream) for k in range(self.num_domains)]
        shapes = {tuple(output.shape) for output in outputs}
        if len(shapes) > 1:
            raise ValueError(
                f"all domains must return logits (B, C) for the same classes, got {sorted(shapes)}."
            )
        return torch.stack(outputs, dim=1)

    def zeros(self) -> Tensor:
        """The zero perturbation, (B, ...)."""
        return torch.zeros_like(self.lower)


class _Views(AbstractProblem):
    """Domains are the pairs (model, transform), model by model; all of them look at the same image."""

    def __init__(
        self,
        models: Sequence[Model],
        transforms: Sequence[Transform | Callable[[Tensor], Tensor]],
        x: Tensor,
        y: Tensor,
        samples: int,
        seed: int,
        names: Sequence[str] | None,
    ) -> None:
        _check_images("x", x, 2)
        _check_labels("y", y, (x.shape[0],))
        self._models = _as_models(models)
        self.transforms = tuple(
            t if isinstance(t, Transform) else from_callable(t) for t in transforms
        )
        if not self.transforms:
            raise ValueError(
                "`transforms` must name at least one transform, got an empty sequence."
            )
        if samples < 1:
            raise ValueError(f"`samples` must be >= 1, got {samples}.")
        self.x = _plain(x)
        self.pairs = [(m, t) for m in range(len(self._models)) for t in range(len(self.transforms))]
        self.labels = y.to(x.device).unsqueeze(1).expand(-1, len(self.pairs))
        self.lower, self.upper = -self.x, 1 - self.x
        self.rows = torch.arange(x.shape[0], device=x.device)
        self.random = any(t.num_draws > 0 for t in self.transforms)
        self.samples = samples if self.random else 1
        self.seed = seed
        self.names = _names(names, self._default_names())

    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        model, view = self.pairs[domain]
        transform = self.transforms[view]
        uniforms = None
        if transform.num_draws:
            draw = stream * len(self.pairs) + domain
            uniforms = streams.uniform(self.seed, self.rows, draw, transform.num_draws)
        return _call(self._models[model], transform(self.x + delta, uniforms))

    def take(self, rows: Tensor) -> Self:
        return _take(self, rows, ("x", "labels", "lower", "upper", "rows"))

    def images(self, delta: Tensor) -> Tensor:
        return self.x + delta

    @property
    def models(self) -> Sequence[Model]:
        return self._models

    def _default_names(self) -> list[str]:
        models, views = _model_names(self._models), [t.name for t in self.transforms]
        if views == [identity.name]:
            return models
        if len(models) == 1:
            return views
        return [f"{models[m]}/{views[t]}" for m, t in self.pairs]


@final
class Ensemble(_Views):
    """One image, K models: delta has to fool all of them (eq. 5).

    Args:
        models: K callables from images to logits. They may differ in input handling, share layers and live
            on different devices.
        x: Images, (B, ...), in [0, 1].
        y: True classes, (B,), or targets in a targeted attack.
        names: One per model, for reports.

    Example:
        >>> models = [nn.Linear(4, 3).eval() for _ in range(2)]
        >>> problem = Ensemble(models, torch.rand(5, 4), torch.zeros(5, dtype=torch.long))
        >>> problem.logits(problem.zeros()).shape
        torch.Size([5, 2, 3])
    """

    def __init__(
        self, models: Sequence[Model], x: Tensor, y: Tensor, *, names: Sequence[str] | None = None
    ) -> None:
        super().__init__(models, [identity], x, y, samples=1, seed=0, names=names)


@final
class Transformed(_Views):
    """One image, one model, K transformations (eq. 7).

    Args:
        model: A callable from images to logits.
        transforms: K transforms, deterministic or random, from `saddlepoint.transforms` or plain callables
            (which are taken to be deterministic).
        x: Images, (B, C, H, W), in [0, 1].
        y: True classes, (B,).
        samples: Draws per step for random transforms; the loss is their mean.
        seed: Of the random draws.
        names: One per transform, for reports.

    Example:
        >>> from saddlepoint import transforms as T
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
        >>> x, y = torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.long)
        >>> problem = Transformed(model, [T.identity, T.hflip], x, y)
        >>> problem.logits(problem.zeros()).shape
        torch.Size([5, 2, 3])
    """

    def __init__(
        self,
        model: Model,
        transforms: Sequence[Transform | Callable[[Tensor], Tensor]],
        x: Tensor,
        y: Tensor,
        samples: int = 1,
        *,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> None:
        _check_images("x", x, 4)
        super().__init__([model], transforms, x, y, samples=samples, seed=seed, names=names)


@final
class Product(_Views):
    """One image, all pairs of models and transformations: K = models x transforms, model by model.

    Args:
        models, transforms, x, y, samples, seed, names: As in `Ensemble` and `Transformed`.

    Example:
        >>> from saddlepoint import transforms as T
        >>> models = [nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval() for _ in range(2)]
        >>> x, y = torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.long)
        >>> Product(models, [T.identity, T.hflip, T.vflip], x, y).num_domains
        6
    """

    def __init__(
        self,
        models: Sequence[Model],
        transforms: Sequence[Transform | Callable[[Tensor], Tensor]],
        x: Tensor,
        y: Tensor,
        samples: int = 1,
        *,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> None:
        _check_images("x", x, 4)
        super().__init__(models, transforms, x, y, samples=samples, seed=seed, names=names)


@final
class Universal(AbstractProblem):
    """One model, groups of K images: one delta per group has to fool the model on all of them (eq. 6).

    Args:
        model: A callable from images to logits.
        groups: (B, K, ...), in [0, 1].
        labels: (B, K).
        box: "intersection" keeps every image of the group in [0, 1] by the box of delta itself; "clip" lets
            delta go further and clips each perturbed image, which allows stronger perturbations where the
            images of a group differ.
        names: One per position in the group, for reports.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
        >>> problem = Universal(model, torch.rand(2, 5, 4), torch.zeros(2, 5, dtype=torch.long))
        >>> problem.logits(problem.zeros()).shape
        torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        model: Model,
        groups: Tensor,
        labels: Tensor,
        box: Literal["intersection", "clip"] = "intersection",
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        _check_images("groups", groups, 3)
        _check_labels("labels", labels, tuple(groups.shape[:2]))
        if box not in ("intersection", "clip"):
            raise ValueError(f'`box` must be "intersection" or "clip", got {box!r}.')
        self._models = _as_models([model])
        self.groups = _plain(groups)
        self.labels = labels.to(groups.device)
        self.box = box
        # max_k(-x_k) <= delta <= min_k(1 - x_k) keeps all images inside; with clipping, nothing beyond
        # min_k(-x_k) or max_k(1 - x_k) changes any image.
        smallest, largest = self.groups.amin(dim=1), self.groups.amax(dim=1)
        inner = box == "intersection"
        self.lower = -(smallest if inner else largest)
        self.upper = 1 - (largest if inner else smallest)
        self.rows = torch.arange(groups.shape[0], device=groups.device)
        self.names = _names(names, [f"image {k + 1}" for k in range(groups.shape[1])])

    def domain_logits(self, delta: Tensor, domain: int, stream: int = 0) -> Tensor:
        """Logits for one position of every group, (B, C)."""
        del stream  # nothing is random here
        return _call(self._models[0], self._clip(self.groups[:, domain] + delta))

    def logits(self, delta: Tensor, stream: int = 0) -> Tensor:
        """Logits of every image, (B, K, C), in one call of the model."""
        del stream
        images = self.images(delta)
        flat = _call(self._models[0], images.flatten(0, 1))
        return flat.reshape(*images.shape[:2], *flat.shape[1:])

    def take(self, rows: Tensor) -> Self:
        """Some groups only."""
        return _take(self, rows, ("groups", "labels", "lower", "upper", "rows"))

    def images(self, delta: Tensor) -> Tensor:
        """Every image of every group with its group's delta, (B, K, ...)."""
        return self._clip(self.groups + delta.unsqueeze(1))

    @property
    def models(self) -> Sequence[Model]:
        """The one model."""
        return self._models

    def _clip(self, images: Tensor) -> Tensor:
        return images.clamp(0.0, 1.0) if self.box == "clip" else images


def check_eval_mode(models: Sequence[Model]) -> None:
    """Refuse models in training mode: their answers depend on the batch and on chance.

    Example:
        >>> check_eval_mode([nn.Dropout().eval()])
    """
    for index, model in enumerate(models):
        # An exported program has no modes, although its shell says otherwise.
        if not isinstance(model, nn.Module) or isinstance(model, torch.fx.GraphModule):
            continue
        if any(module.training for module in model.modules()):
            raise ValueError(
                f"models[{index}] ({type(model).__name__}) is in training mode, which makes its answers "
                "depend on the batch and on chance; call model.eval() first."
            )


def _take(problem: P, rows: Tensor, names: Sequence[str]) -> P:
    """A copy of the problem in which the named tensors keep only some rows."""
    part = object.__new__(type(problem))
    part.__dict__.update(problem.__dict__)
    for name in names:
        setattr(part, name, getattr(problem, name)[rows])
    return part


def _call(model: Model, images: Tensor) -> Tensor:
    """Logits on the device of the images, wherever the model lives."""
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if parameter is None or parameter.device == images.device:
        return model(images)
    return model(images.to(parameter.device)).to(images.device)


def _plain(x: Tensor) -> Tensor:
    """Images without graph, in [0, 1] to the last bit, usable by autograd even if made in inference mode."""
    with torch.inference_mode(False):
        return x.detach().clone().clamp_(0.0, 1.0)


def _as_models(models: Sequence[Model] | nn.ModuleList) -> tuple[Model, ...]:
    if not isinstance(models, nn.ModuleList) and callable(models):
        raise TypeError("`models` must be a sequence of models, got a single one; write [model].")
    models = tuple(models)
    if not models:
        raise ValueError("`models` must name at least one model, got an empty sequence.")
    for index, model in enumerate(models):
        if not callable(model):
            raise TypeError(f"`models[{index}]` must be callable, got {type(model).__name__}.")
    return models


def _model_names(models: Sequence[Model]) -> list[str]:
    own = [getattr(model, "name", None) for model in models]
    if all(isinstance(name, str) for name in own) and len(set(own)) == len(own):
        return [str(name) for name in own]
    return [f"model {index + 1}" for index in range(len(models))]


def _names(names: Sequence[str] | None, default: list[str]) -> tuple[str, ...]:
    if names is None:
        return tuple(default)
    if len(names) != len(default):
        raise ValueError(
            f"`names` must have one entry per domain, {len(default)}, got {len(names)}."
        )
    return tuple(names)


def _check_images(name: str, x: Tensor, rank: int) -> None:
    if x.dim() < rank or x.shape[0] == 0 or x.numel() == 0:
        raise ValueError(
            f"`{name}` must have at least {rank} axes and one row, got shape {tuple(x.shape)}."
        )
    if not x.is_floating_point():
        raise TypeError(
            f"`{name}` must be a floating-point tensor in [0, 1], got {x.dtype}; "
            "divide 8-bit images by 255."
        )
    low, high = x.aminmax()
    if not bool((low >= -1e-6) & (high <= 1 + 1e-6)):  # also catches NaN
        raise ValueError(
            f"`{name}` must be finite and in [0, 1], got values from {low.item():.4g} to "
            f"{high.item():.4g}; undo any normalisation and let the model do it."
        )


def _check_labels(name: str, labels: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(labels.shape) != shape:
        raise ValueError(f"`{name}` must have shape {shape}, got {tuple(labels.shape)}.")
    if labels.dtype != torch.int64:
        raise TypeError(f"`{name}` must be int64 class numbers, got {labels.dtype}.")
    if bool((labels < 0).any()):
        raise ValueError(f"`{name}` must be >= 0, got a minimum of {labels.min().item()}.")
