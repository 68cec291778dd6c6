"""The sentence on plans so near the memory limit that the allocator may stop the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from autoplan.costs.core.prediction import Prediction
from autoplan.schema.job import Job

__all__ = ["near_limit_sentences"]

#: Share of a device's memory above which a plan is near the limit.
_NEAR: Final = 0.95


def near_limit_sentences(job: Job, predicted: Sequence[Prediction]) -> list[str]:
    """Return the sentence on plans that fit with less than 5 % to spare; none without a caching allocator.

    When an allocation fails, PyTorch's caching allocator waits for the device, frees its cached blocks and
    allocates again (``num_alloc_retries`` of ``torch.cuda.memory_stats``): pytorch, c10/cuda/
    CUDACachingAllocator.cpp, release_cached_blocks.
    """
    if job.stack.memory.allocator_fragmentation.value <= 1.0:
        return []
    usable = job.cluster.device.memory.usable.value
    shares = [x.peak_memory_bytes_per_device / usable for x in predicted if x.fits]
    near = [share for share in shares if share > _NEAR]
    if not near:
        return []
    which = "the plan needs" if len(predicted) == 1 else f"{len(near)} of {len(predicted)} plans need"
    most = f"{100 * max(near):.0f} %" if len(near) == 1 else f"up to {100 * max(near):.0f} %"
    sentence = (
        f"{which} {most} of a device's memory: where an allocation fails, PyTorch's allocator waits for the"
        " device, frees its cache and allocates again (num_alloc_retries), which the step time leaves out"
    )
    return [sentence]
