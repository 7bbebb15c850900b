"""The loops: `apgda`, Algorithm 1 to the letter, and `attack`, its strong and fast form.

Each has a file of its own name; as attributes of this room the two names are the functions.
"""

from saddlepoint.solver.apgda import apgda
from saddlepoint.solver.attack import attack
from saddlepoint.solver.result import AttackResult, History, Progress

__all__ = ["AttackResult", "History", "Progress", "apgda", "attack"]
