"""Success rates of attacks, and robust accuracy under suites of attacks, with verdicts of our own."""

from saddlepoint.evaluation.attacks import AbstractAttack, Target
from saddlepoint.evaluation.domain_results import DomainAccuracy
from saddlepoint.evaluation.domains import robust_domains
from saddlepoint.evaluation.failures import AttackFailedError, Failure
from saddlepoint.evaluation.given import HasBall
from saddlepoint.evaluation.held_out import PatchRates, patch_rates
from saddlepoint.evaluation.ledger import Ledger, Page, SharedLedger
from saddlepoint.evaluation.origins import Origin
from saddlepoint.evaluation.ours import OurAttack
from saddlepoint.evaluation.radii import smallest_radius
from saddlepoint.evaluation.rates import SuccessRates, success_rates, wilson
from saddlepoint.evaluation.results import Outcome, RobustAccuracy
from saddlepoint.evaluation.robust import robust_accuracy
from saddlepoint.evaluation.saved_images import SavedImages, save_images, save_nearest
from saddlepoint.evaluation.suites import SUITES, Suite
from saddlepoint.evaluation.verdicts import Verdict, judge, judge_domains
from saddlepoint.evaluation.work import EvaluationProgress

__all__ = [
    "SUITES",
    "AbstractAttack",
    "AttackFailedError",
    "DomainAccuracy",
    "EvaluationProgress",
    "Failure",
    "HasBall",
    "Ledger",
    "Origin",
    "OurAttack",
    "Outcome",
    "Page",
    "PatchRates",
    "RobustAccuracy",
    "SavedImages",
    "SharedLedger",
    "SuccessRates",
    "Suite",
    "Target",
    "Verdict",
    "judge",
    "judge_domains",
    "patch_rates",
    "robust_accuracy",
    "robust_domains",
    "save_images",
    "save_nearest",
    "smallest_radius",
    "success_rates",
    "wilson",
]
