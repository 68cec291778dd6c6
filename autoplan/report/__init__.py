"""Answers as documents (JSON, YAML) and as blocks, which a terminal and a page show."""

from autoplan.report.document_fields import explanation_document, front_document, plan_document
from autoplan.report.render.serialization import dump

__all__ = ["dump", "explanation_document", "front_document", "plan_document"]
