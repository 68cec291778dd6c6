"""One device: what it reaches, and the time of its kernels."""
