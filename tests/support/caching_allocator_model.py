"""PyTorch's caching allocator on one stream, by the rules of its source: which segments it asks for.

PyTorch 2.13: round_size, get_pool, get_allocation_size, get_free_block (best fit) and should_split of
c10/cuda/CUDACachingAllocator.cpp, with the sizes of c10/core/AllocatorConfig.h. Expandable segments are off.
"""

from dataclasses import dataclass, field

MIB = 2**20
BLOCK, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE_FROM, LARGE_SEGMENT, LARGE_ROUNDING = 10 * MIB, 20 * MIB, 2 * MIB


@dataclass
class CachingAllocator:
    """Bytes reserved, and the free blocks of the pools of small and of large blocks."""

    reserved: int = 0
    allocated: int = 0
    free: dict = field(default_factory=lambda: {"small": [], "large": []})

    def allocate(self, size):
        """Take a block for ``size`` bytes: the smallest free one that holds it, else of a new segment."""
        if size == 0:
            return
        rounded = max(BLOCK, -(-size // BLOCK) * BLOCK)
        pool = "small" if rounded <= SMALL else "large"
        blocks = self.free[pool]
        fitting = sorted(block for block in blocks if block >= rounded)
        if fitting:
            block = fitting[0]
            blocks.remove(block)
        else:
            block = self._segment(rounded)
            self.reserved += block
        rest = block - rounded
        if (pool == "small" and rest >= BLOCK) or (pool == "large" and rest > SMALL):
            blocks.append(rest)
        self.allocated += rounded

    @staticmethod
    def _segment(rounded):
        if rounded <= SMALL:
            return SMALL_SEGMENT
        if rounded < LARGE_FROM:
            return LARGE_SEGMENT
        return -(-rounded // LARGE_ROUNDING) * LARGE_ROUNDING
