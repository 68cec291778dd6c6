"""One device: its achieved rates, the time of its kernels, and its memory limit."""
