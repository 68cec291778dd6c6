"""What targets write of low-rank adapters: what they refuse, so that none is dropped."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from autoplan.launch.target import InexpressibleError
from autoplan.schema.job import Job

__all__ = ["refuse_adapter_fields"]

#: Fields that every target with adapters writes, and what it knows of their products.
_WRITTEN: Final = ("rank", "targets")
_TARGETS: Final = ("attention", "all")


def refuse_adapter_fields(job: Job, expressed: Collection[str] = _WRITTEN) -> None:
    """Raise InexpressibleError for a choice of ``adapters`` that is not ``expressed``: none is dropped."""
    if job.adapters is None:
        return
    for name, field in type(job.adapters).model_fields.items():
        value = getattr(job.adapters, name)
        if name not in expressed and value != field.default:
            raise InexpressibleError(f"the choice adapters.{name}={value}")
    if job.adapters.targets not in _TARGETS:
        raise InexpressibleError(f"adapters at single products (adapters.targets={job.adapters.targets})")
