"""Use case ``gemm``: one matrix product, on one device or on several."""

from __future__ import annotations

from autoplan.planning.matmul.product_question import GemmQuestion
from autoplan.results.matmul.distributed_answer import DistributedAnswer
from autoplan.results.matmul.product_answer import ProductAnswer

__all__ = ["gemm"]


def gemm(question: GemmQuestion) -> ProductAnswer | DistributedAnswer:
    """Return what a matrix product takes: on one device, or under the best scheme on several.

    Raises SpecError for values out of range, CatalogError for unknown names, UnsupportedError for a number of
    devices that fills no whole nodes, or a format that the device has no rate for.
    """
    if question.several:
        from autoplan.planning.matmul.distributed_product import distributed_product

        return distributed_product(question)
    from autoplan.planning.matmul.single_product import single_product

    return single_product(question)
