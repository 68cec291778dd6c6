"""What targets write of low-rank adapters: what they refuse, so that none is dropped."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job

__all__ = ["refuse_adapter_fields", "refuse_other_bases"]

#: Fields that every target with adapters writes, and what it knows of their products.
_WRITTEN: Final = ("rank", "targets")
_TARGETS: Final = ("attention", "all")


def refuse_adapter_fields(job: Job, expressed: Collection[str] = (), *, modules: bool = False) -> None:
    """Raise InexpressibleError for a choice of ``adapters`` that is not ``expressed``: none is dropped.

    Every target writes rank and targets; ``modules`` says whether it writes single products among these.
    """
    if job.adapters is None:
        return
    for name, field in type(job.adapters).model_fields.items():
        value = getattr(job.adapters, name)
        if name not in {*_WRITTEN, *expressed} and value != field.default:
            raise InexpressibleError(f"the choice adapters.{name}={value}")
    if not modules and job.adapters.targets not in _TARGETS:
        raise InexpressibleError(f"adapters at single products (adapters.targets={job.adapters.targets})")


def refuse_other_bases(job: Job) -> None:
    """Raise InexpressibleError for a frozen base other than nf4 whose scales are quantised themselves."""
    adapters = job.adapters
    if adapters is None or adapters.base is None or (adapters.base == "nf4" and adapters.doubly_quantized):
        return
    scales = "" if adapters.doubly_quantized else " with plain scales"
    raise InexpressibleError(f"a frozen base in {adapters.base}{scales}")
