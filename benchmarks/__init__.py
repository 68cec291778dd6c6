"""How fast autoplan is and how close to measured runs; run each as ``python -m benchmarks.X``."""
