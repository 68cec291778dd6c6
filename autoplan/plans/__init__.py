"""What planning answers with: plans, fronts, and the rules that a layout must keep."""

from autoplan.plans.front import Certificate, Front, Rejection
from autoplan.plans.plan import Plan
from autoplan.plans.rules import broken_rules

__all__ = ["Certificate", "Front", "Plan", "Rejection", "broken_rules"]
