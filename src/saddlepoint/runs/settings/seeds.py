"""Seeds as settings, refused before anything is loaded where the generators of torch cannot take them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from saddlepoint.counts import check_seed_range, check_training_seed

__all__ = ["Seed", "TrainingSeed"]

_SAID = Field(description="Of everything random.")

Seed = Annotated[int, AfterValidator(check_seed_range), _SAID]
"""Of attacks and evaluations."""
TrainingSeed = Annotated[int, AfterValidator(check_training_seed), _SAID]
"""Of trainings, which make seeds of epochs and steps of it."""
