"""Profiler traces: PyTorch Profiler (Kineto) and Nsight Systems, read in a stream and attributed to parts."""

from autoplan.calibration.traces.trace_formats import read_trace, trace_files

__all__ = ["read_trace", "trace_files"]
