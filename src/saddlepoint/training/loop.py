"""The training loop: epochs, learning rate, validation, checkpoints and resuming, for every method.

A *method* moves the weights once per batch and says how it went. Everything else lives here, once.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batches import Batches, Loader, Progress
from .methods import ADVERSARIAL, AbstractMethod, MethodOptions, Plain, Step, make_method
from .recipes import Recipe
from .session import CHECKPOINT, Session, Validation
from .threats import Threat, check_threats

__all__ = ["METHODS", "Batches", "Loader", "Progress", "Step", "clean_step", "train"]

METHODS = (*ADVERSARIAL, "clean")
"""Names of methods for `train`."""


def clean_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> dict[str, float]:
    """One step on the cross-entropy of unperturbed images.

    Args:
        model: In training mode; its weights move.
        optimizer: Over the weights of `model`.
        x: Images, (B, ...).
        y: Labels, (B,).

    Returns:
        Means over the batch before the step: "loss" and "accuracy".

    Example:
        >>> model = nn.Linear(2, 3)
        >>> optimizer = torch.optim.SGD(model.parameters())
        >>> sorted(clean_step(model, optimizer, torch.rand(4, 2), torch.tensor([0, 1, 2, 0])))
        ['accuracy', 'loss']
    """
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hits = logits.detach().argmax(dim=1) == y
    return {"loss": loss.item(), "accuracy": hits.float().mean().item()}


def train(
    model: nn.Module,
    loader: Loader,
    threats: Mapping[str, Threat] | None = None,
    *,
    method: str | Step = "clean",
    recipe: Recipe | None = None,
    epochs: int | None = None,
    validation: tuple[Tensor, Tensor] | None = None,
    validation_steps: int = 20,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    seed: int = 0,
    callback: Callable[[Progress], None] | None = None,
    **options: Unpack[MethodOptions],
) -> tuple[Progress, ...]:
    """Trains `model` in place, reproducibly, and so that any interruption can be resumed.

    At the start of every epoch the global generator is seeded from (seed, epoch): shuffling,
    augmentation and dropout are the same in every run on the same machine, and a run resumed from a
    checkpoint ends with the same weights as one that was never interrupted. The caller's
    random state, and the training or evaluation mode of every part of the model, are as before
    afterwards. A DataLoader must not have a generator of its own for this to hold.

    Where `torch.distributed` has been initialised, every process gives the same loader, works on its
    share of every batch, and ends with the same weights as a single process would.

    Args:
        model: Classifier; inputs in [0, 1], output logits (B, classes).
        loader: Batches (x, y), with a length.
        threats: K named threats. Needed by all methods but "clean".
        method: "ampgd" (Algorithm 2), "avg", "max", "msd"; "linf", "l2" or "l1" for the threat of that
            norm only, "single" for the only one; "clean"; or a step function of your own.
        recipe: Optimiser and schedule; its batch size and augmentation are the loader's business.
            None is AdamW at 0.001, one-cycle, 10 epochs.
        epochs: Overrides the number in the recipe.
        validation: Held-out images and labels. After every epoch the accuracy under all `threats` is measured
            on them, and the weights with the highest are what `model` ends with.
        validation_steps: Steps of the attacks on them.
        out: Folder for `checkpoint.safetensors`, `best.safetensors` (if validated) and `history.jsonl`, one
            line per epoch; all are rewritten after every epoch. None keeps nothing.
        resume: Continue from the checkpoint in `out`, or start if there is none yet.
        checkpoint_every: Write a checkpoint after every so many steps too, for long epochs.
        seed: Of everything random.
        callback: Called after every step; after the last of an epoch when everything has been written.
        **options: `rule`, `steps`, `mix`, `start` and `ramp`, see `MethodOptions`.

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
        >>> threats = {"linf": Threat(LpBall(torch.inf, 0.1)), "l2": Threat(LpBall(2, 0.2))}
        >>> history = train(model, loader, threats, method="ampgd", epochs=3, steps=5)
        >>> [progress.epoch for progress in history], sorted(history[0].stats)[:3]
        ([1, 2, 3], ['accuracy', 'accuracy/l2', 'accuracy/linf'])
    """
    recipe = recipe or Recipe("default", "adamw", 0.001, 10, weight_decay=0.01)
    recipe = replace(recipe, epochs=epochs) if epochs is not None else recipe
    chosen = _method(method, threats, validation, options)
    _check(seed, loader, validation, checkpoint_every)
    folder = Path(out) if out is not None else None
    session = Session(
        model,
        loader,
        recipe.make_optimizer(model),
        chosen,
        recipe,
        seed=seed,
        folder=folder,
        config=_config(method, recipe, seed, len(loader), threats, options),
        validation=validation and Validation(*validation, threats or {}, validation_steps),
        checkpoint_every=checkpoint_every,
        callback=callback,
    )
    if resume and folder is None:
        raise ValueError("`out` must be given to resume, got None.")
    path = folder / CHECKPOINT if folder is not None else None
    if path is not None and path.exists():
        if not resume:
            raise FileExistsError(f"`out` has {path} already; resume it or choose another folder.")
        session.restore(path)
    session.run()
    return tuple(session.history)


def _method(
    method: str | Step,
    threats: Mapping[str, Threat] | None,
    validation: tuple[Tensor, Tensor] | None,
    options: MethodOptions,
) -> AbstractMethod:
    if isinstance(method, str) and method not in METHODS:
        raise ValueError(
            f"`method` must be 'clean', one of {', '.join(ADVERSARIAL)}, or a step function, got {method!r}."
        )
    if isinstance(method, str) and method != "clean":
        if not threats:
            raise ValueError(
                f"`threats` must name at least one threat for method {method!r}, got {threats}; "
                "method 'clean' trains without."
            )
        return make_method(method, threats, **options)
    if options:
        raise ValueError(
            f"`{next(iter(options))}` is an option of {', '.join(ADVERSARIAL)} only, got it for {method!r}."
        )
    if threats and method == "clean" and validation is None:
        raise ValueError(
            f"`threats` must be None for method 'clean' without validation, got {sorted(threats)}."
        )
    if threats:
        check_threats(threats)
    return Plain(clean_step if isinstance(method, str) else method)


def _check(
    seed: int,
    loader: Loader,
    validation: tuple[Tensor, Tensor] | None,
    checkpoint_every: int | None,
) -> None:
    if not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be in [0, 2**32), got {seed}.")
    if len(loader) == 0:
        raise ValueError("`loader` must have at least one batch, got none.")
    if checkpoint_every is not None and checkpoint_every < 1:
        raise ValueError(f"`checkpoint_every` must be >= 1, got {checkpoint_every}.")
    if validation is not None and not 0 < len(validation[0]) == len(validation[1]):
        raise ValueError(
            "`validation` must be images and labels of equal length > 0, "
            f"got {len(validation[0])} and {len(validation[1])}."
        )


def _config(
    method: str | Step,
    recipe: Recipe,
    seed: int,
    steps: int,
    threats: Mapping[str, Threat] | None,
    options: MethodOptions,
) -> dict[str, Any]:
    """What must be the same for a run to be continued, as JSON gives it back."""
    config: dict[str, Any] = {
        "seed": seed,
        "method": method if isinstance(method, str) else "custom",
        "steps": steps,
        "recipe": asdict(recipe),
    }
    if threats:
        config["threats"] = {name: threat.describe() for name, threat in threats.items()}
    if options:
        config["options"] = {key: str(value) for key, value in sorted(options.items())}
    plain: dict[str, Any] = json.loads(json.dumps(config))
    return plain
