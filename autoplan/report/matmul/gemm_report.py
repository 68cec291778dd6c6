"""Answers of ``gemm`` as documents, and as text for a terminal."""

from __future__ import annotations

from typing import Any

from autoplan.report.document_fields import SCHEMA, Document, plain
from autoplan.report.matmul.distributed_tables import distributed_table
from autoplan.report.matmul.product_tables import product_table
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.provenance import provenance
from autoplan.results.matmul.distributed_answer import DistributedAnswer
from autoplan.results.matmul.product_answer import ProductAnswer

__all__ = ["gemm_document", "gemm_table"]


def gemm_document(answer: ProductAnswer | DistributedAnswer) -> Document:
    """Return the answer as a document, with where its numbers come from."""
    fields: dict[str, Any] = {
        name: plain(getattr(answer, name)) for name in answer.__dataclass_fields__ if name != "job"
    }
    cluster = answer.job.cluster
    return {
        "schema": SCHEMA,
        "kind": "gemm" if isinstance(answer, ProductAnswer) else "distributed gemm",
        "hardware": {"node": cluster.node.name, "device": cluster.device.name, "devices": cluster.devices},
        "feasible": answer.feasible,
        **fields,
        "provenance": provenance(answer.job),
    }


def gemm_table(answer: ProductAnswer | DistributedAnswer, terminal: Terminal) -> str:
    """Return the answer as text."""
    if isinstance(answer, ProductAnswer):
        return product_table(answer, terminal)
    return distributed_table(answer, terminal)
