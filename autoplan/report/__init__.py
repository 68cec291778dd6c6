"""Answers for people and programs: documents (JSON, YAML) and tables for a terminal."""

from autoplan.report.document import front_document, plan_document
from autoplan.report.text import dump

__all__ = ["dump", "front_document", "plan_document"]
