"""What planning answers with: plans, fronts, explanations, and the rules that a layout must keep."""

from autoplan.plans.explanation import Explanation, Remedy
from autoplan.plans.front import Certificate, Front, Rejection
from autoplan.plans.plan import Plan
from autoplan.plans.rules import broken_rules

__all__ = ["Certificate", "Explanation", "Front", "Plan", "Rejection", "Remedy", "broken_rules"]
