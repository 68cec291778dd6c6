"""Answers for people and programs: documents (JSON, YAML) and tables for a terminal."""

from autoplan.report.document import explanation_document, front_document, plan_document
from autoplan.report.text import dump

__all__ = ["dump", "explanation_document", "front_document", "plan_document"]
