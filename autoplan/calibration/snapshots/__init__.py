"""Records of PyTorch's allocator: snapshots and memory timelines, read without being executed."""

from autoplan.calibration.snapshots.memory_record import read_memory

__all__ = ["read_memory"]
