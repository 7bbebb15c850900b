"""The loops: `apgda`, Algorithm 1 to the letter, and `attack`, its strong and fast form."""

from saddlepoint.solver.paper import apgda
from saddlepoint.solver.result import AttackResult, History, Progress
from saddlepoint.solver.strong import attack

__all__ = ["AttackResult", "History", "Progress", "apgda", "attack"]
