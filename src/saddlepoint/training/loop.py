"""The training loop: epochs, learning rate, validation, checkpoints and resuming, for every method.

A *method* moves the parameters once per batch and says how it went. Everything else lives here, once.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from saddlepoint.bars import telling
from saddlepoint.behind import keeping_random
from saddlepoint.counts import check_seed, check_training_seed
from saddlepoint.directions import raw
from saddlepoint.loaders import batches, collected, in_order, length
from saddlepoint.losses import fooled
from saddlepoint.precision import Precision
from saddlepoint.rounding import without_autocast
from saddlepoint.solver.domain_losses import gradients_enabled

from .abstract_method import AbstractMethod, Plain, Step
from .attack_and_update import ask, check_batch, check_model, evaluating
from .batches import Batches, Loader, TrainingProgress, as_batch, as_loader
from .checkpoints import check_state, read_config
from .methods import ADVERSARIAL, MethodOptions, make_method
from .recipes import Recipe
from .session import CHECKPOINT, Session, Validation
from .step_precision import check_training_precision, faster_precision, precisions_of_step
from .stepping import buffers_back, step_on
from .threats import Threat, ThreatLike, check_threats
from .training_bar import training_bar

__all__ = ["METHODS", "Batches", "Loader", "Step", "TrainingProgress", "clean_step", "train"]

_LOOK = 250  # images of a batch of validation

METHODS = (*ADVERSARIAL, "clean")
"""Names of methods for `train`."""


def clean_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    precision: Precision = "float32",
) -> dict[str, float]:
    """One step on the cross-entropy of unperturbed images.

    Args:
        model: In training mode; its parameters move.
        optimizer: Over the parameters of `model`.
        x: Images in [0, 1], (B, ...).
        y: Labels, (B,).
        precision: What the model computes in, as in `ampgd_step`.

    Returns:
        Means over the batch before the step: "loss" and "accuracy".

    Raises:
        ValueError: An argument is wrong.
        FloatingPointError: The loss or a gradient is not finite. Parameters and buffers are as before.

    Example:
        >>> model = nn.Linear(2, 3)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> sorted(clean_step(model, optimizer, torch.rand(4, 2), torch.tensor([0, 1, 2, 0])))
        ['accuracy', 'loss']
    """
    check_model(model)
    x, y = check_batch(x, y)
    lowered = precisions_of_step(model, x, y, precision)
    with without_autocast(), gradients_enabled(), lowered.applied(), buffers_back(model):
        logits = ask(model, x, y, fresh=True)
        loss = F.cross_entropy(logits, y)
        step_on(loss, optimizer, model, logits)
    right = ~fooled(logits.detach(), y)
    return {"loss": loss.item(), "accuracy": right.float().mean().item()}


def train(
    model: nn.Module,
    loader: Loader | Dataset[Any],
    threats: Mapping[str, ThreatLike] | None = None,
    *,
    method: str | Step | None = None,
    recipe: Recipe | None = None,
    epochs: int | None = None,
    validation: tuple[Tensor, Tensor] | Loader | Dataset[Any] | None = None,
    validation_steps: int = 20,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    seed: int = 0,
    precision: Precision = "float32",
    progress: bool = False,
    callback: Callable[[TrainingProgress], None] | None = None,
    **options: Unpack[MethodOptions],
) -> tuple[TrainingProgress, ...]:
    """Trains `model` in place, reproducibly, and so that any interruption can be resumed.

    At the start of every epoch the global generator is seeded from (seed, epoch): shuffling,
    augmentation and dropout are the same in every run on the same machine, and a run resumed from a
    checkpoint ends with the same parameters as one that was never interrupted. The caller's
    random state, and the training or evaluation mode of every part of the model, are as before
    afterwards. A DataLoader must not have a generator of its own for this to hold.

    Where `torch.distributed` has been initialised, every process gives the same loader, works on its
    share of every batch, and ends with the same parameters as a single process would, up to rounding.

    Args:
        model: Classifier; inputs in [0, 1], output logits (B, classes).
        loader: Batches (x, y) with images in [0, 1], and a length; or a data set of torch, which is shuffled
            into batches of the recipe's size.
        threats: K named balls, or `Threat`s. Needed by all methods but "clean".
        method: None is "ampgd" with threats and "clean" without. "ampgd" is Algorithm 2 with stronger inner
            attacks, "ampgd-paper" is Algorithm 2 to the letter (docs/training.md says how they differ); "avg",
            "max", "msd"; "eat" (E-AT), one threat per step; "linf", "l2" or "l1" for the threat
            of that norm only; "clean"; or a step function of your own, called as
            step(model, optimizer, x, y, iteration).
        recipe: Optimiser and schedule; its batch size and augmentation are the loader's business.
            None is AdamW at 0.001, one-cycle, 10 epochs.
        epochs: Overrides the number in the recipe.
        validation: Held-out images and labels, or a data set or a loader of them: one that does not shuffle is
            read anew, batch by batch, in every epoch, another once and kept. After every epoch the accuracy
            under all `threats` is measured on them, and `model` ends with the parameters of the best epoch.
        validation_steps: Steps of the attacks on them.
        out: Folder for `checkpoint.safetensors`, `best.safetensors` (if validated) and `history.jsonl`, one
            line per epoch; all are rewritten after every epoch. None keeps nothing.
        resume: Continue from the checkpoint in `out`, or start if there is none yet.
        checkpoint_every: Write a checkpoint after every so many steps too, for long epochs.
        seed: Of everything random.
        precision: What the model computes in while it is trained, as in `ampgd_step`; validation is in full
            precision, while steps keep what is set for the process, such as TF32. "auto" is decided once, by
            process 0 for all, and kept in the checkpoint: a run that is resumed goes on as it began.
        progress: Whether to show a bar with epoch and time left, and a line per epoch, on stderr (needs rich).
        callback: Called after every step; after the last of an epoch when everything has been written.
        **options: `rule`, `steps`, `mix`, `start`, `ramp` and `radii`, see `MethodOptions`.

    Returns:
        The state of affairs at the end of each epoch.

    Raises:
        ValueError: An argument is wrong, or the checkpoint belongs to another run.
        FileExistsError: `out` has a checkpoint and `resume` was not asked for.
        FloatingPointError: The loss is no longer finite. The last checkpoint is intact.

    Example:
        >>> from saddlepoint.projections import LpBall
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        >>> loader = Batches(torch.rand(8, 1, 2, 2), torch.tensor([0, 1] * 4), size=4)
        >>> threats = {"linf": LpBall(torch.inf, 0.1), "l2": LpBall(2, 0.2)}
        >>> history = train(model, loader, threats, epochs=3, steps=5)
        >>> [progress.epoch for progress in history], sorted(history[0].stats)[:3]
        ([1, 2, 3], ['accuracy', 'accuracy/l2', 'accuracy/linf'])
    """
    recipe = recipe or Recipe("default", "adamw", 0.001, 10, weight_decay=0.01)
    recipe = replace(recipe, epochs=epochs) if epochs is not None else recipe
    loader = as_loader(loader, recipe.batch_size)
    method = ("ampgd" if threats else "clean") if method is None else method
    named = check_threats(threats) if threats else {}
    check_training_precision(precision)
    seed = _checked_seed(model, seed, loader, checkpoint_every)
    held_out = None if validation is None else _held_out(validation, model)
    folder = Path(out) if out is not None else None
    path = folder / CHECKPOINT if folder is not None else None
    if precision == "auto":
        precision = _decided(model, loader, path if resume else None)
    if recipe.sides and method != "clean":
        raise ValueError(
            f"`recipe` must have no `sides` for method {method!r}, got {recipe.sides}: radii are "
            "those of whole images."
        )
    chosen = _method(method, named, precision, options, validated=held_out is not None)
    session = Session(
        model,
        loader,
        recipe.make_optimizer(model),
        chosen,
        recipe,
        seed=seed,
        folder=folder,
        config=_config(method, recipe, seed, len(loader), named, precision, options),
        validation=held_out and Validation(*held_out, _judges(named), validation_steps),
        checkpoint_every=checkpoint_every,
    )
    if folder is not None or held_out is not None:
        check_state(model)
    if resume and folder is None:
        raise ValueError("`out` must be given to resume, got None.")
    if path is not None and path.exists():
        if not resume:
            raise FileExistsError(f"`out` has {path} already; resume it or choose another folder.")
        session.restore(path)
    with telling(progress, callback, training_bar) as session.callback:
        session.run()
    return tuple(session.history)


def _held_out(validation: Any, model: nn.Module) -> tuple[Any, Tensor | None]:
    """Images and labels, or what gives them, if it gives the same ones in every epoch.

    Raises:
        TypeError, ValueError: The model cannot be validated on them, by the look of the first batch.
    """
    try:
        found = _images_and_labels(validation)
        with keeping_random([model]), evaluating(model) as module, torch.no_grad():
            x, y = check_batch(*(next(batches(found[0], _LOOK)) if found[1] is None else found))
            device = next(model.parameters()).device
            ask(module, x[:1].to(device), y.to(device))
    except (TypeError, ValueError) as error:
        if not str(error).startswith(("`x`", "`y`")):
            raise
        kind = TypeError if isinstance(error, TypeError) else ValueError
        told = str(error).replace(", or give `y`", "").replace("`x`", "`validation`")
        raise kind(told.replace("`y`", "the labels of `validation`")) from error
    return found


def _images_and_labels(validation: Any) -> tuple[Any, Tensor | None]:
    if in_order(validation) and length(validation) != 0:
        return validation, None
    x, y = validation if isinstance(validation, tuple) else collected(validation)
    if not 0 < len(x) == len(y):
        raise ValueError(
            f"`validation` must be images and labels of equal length > 0, got {len(x)} and {len(y)}."
        )
    return x, y


def _decided(model: nn.Module, loader: Loader, path: Path | None) -> Precision:
    """What "auto" is: as in the checkpoint, if there is one, else what is faster with the first images."""
    if path is not None and path.exists():
        found: Precision = read_config(path).get("precision", "float32")
        return found
    with keeping_random([model]):  # drawing a batch takes numbers from the generator
        x, y, _ = as_batch(next(iter(loader)))
    return faster_precision(model, x, y)


def _method(
    method: str | Step,
    threats: Mapping[str, Threat],
    precision: Precision,
    options: MethodOptions,
    *,
    validated: bool,
) -> AbstractMethod:
    if not callable(method) and method not in METHODS:
        raise ValueError(
            f"`method` must be one of {', '.join(METHODS)}, or a step function, got {method!r}."
        )
    if isinstance(method, str) and method != "clean":
        if not threats:
            raise ValueError(
                f"`threats` must name at least one threat for method {method!r}, got none; "
                "method 'clean' trains without."
            )
        return make_method(method, threats, precision=precision, **options)
    if options:
        raise ValueError(
            f"`{next(iter(options))}` is an option of {', '.join(ADVERSARIAL)} only, got it for {method!r}."
        )
    if threats and method == "clean" and not validated:
        raise ValueError(
            f"`threats` must be None for method 'clean' without validation, got {sorted(threats)}."
        )
    if callable(method):
        if precision != "float32":
            raise ValueError(
                "`precision` must be float32 for a step function of your own, which asks the model itself, got "
                f"{precision!r}; give it to the steps that yours calls."
            )
        return Plain(method)
    return Plain(
        lambda model, optimizer, x, y, _: clean_step(model, optimizer, x, y, precision=precision)
    )


def _judges(threats: Mapping[str, Threat]) -> dict[str, Threat]:
    """The threats to validate against: those of training, but never by plain gradients, which stop short."""
    return {
        name: Threat(threat.ball) if threat.direction is raw else threat
        for name, threat in threats.items()
    }


def _checked_seed(
    model: nn.Module,
    seed: int,
    loader: Loader,
    checkpoint_every: int | None,
) -> int:
    """The seed as a whole number, once everything else is found to be usable too."""
    seed = check_training_seed(check_seed(seed))
    check_model(model)
    try:
        count = len(loader)
    except TypeError:
        raise TypeError(
            "`loader` must have a length, and give all batches anew in every epoch, as a DataLoader and a list "
            f"of batches do, got {type(loader).__name__}."
        ) from None
    if next(model.parameters(), None) is None:
        raise ValueError("`model` must have parameters to train, got none.")
    if count == 0:
        raise ValueError("`loader` must have at least one batch, got none.")
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ValueError(f"`checkpoint_every` must be >= 1, got {checkpoint_every}.")
    return seed


def _config(
    method: str | Step,
    recipe: Recipe,
    seed: int,
    steps: int,
    threats: Mapping[str, Threat],
    precision: Precision,
    options: MethodOptions,
) -> dict[str, Any]:
    """What must be the same for a run to be continued, as JSON gives it back."""
    config: dict[str, Any] = {
        "seed": seed,
        "method": method if isinstance(method, str) else "custom",
        "steps": steps,
        "recipe": asdict(recipe),
        "precision": precision,
    }
    if threats:
        config["threats"] = {name: threat.describe() for name, threat in threats.items()}
    if options:
        config["options"] = {key: str(value) for key, value in sorted(options.items())}
    plain: dict[str, Any] = json.loads(json.dumps(config))
    return plain
