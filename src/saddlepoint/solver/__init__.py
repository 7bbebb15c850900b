"""The loops: `apgda`, Algorithm 1 to the letter, and `attack`, its strong and fast form.

Each has a file of its own name; as attributes of this room the two names are the functions. They check what
they are given, look at the problem once and warn once. What is checked already is handed to `apgda_unchecked`
and `attack_unchecked`, the cores below them.
"""

from saddlepoint.solver.apgda import apgda, apgda_unchecked
from saddlepoint.solver.attack import attack, attack_unchecked
from saddlepoint.solver.gradients import Estimated, Gradient, Searched, estimated, searched
from saddlepoint.solver.result import Asked, AttackResult, History, Progress
from saddlepoint.solver.schedule import Schedule

__all__ = [
    "Asked",
    "AttackResult",
    "Estimated",
    "Gradient",
    "History",
    "Progress",
    "Schedule",
    "Searched",
    "apgda",
    "apgda_unchecked",
    "attack",
    "attack_unchecked",
    "estimated",
    "searched",
]
