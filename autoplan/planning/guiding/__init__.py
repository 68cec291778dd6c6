"""Guide to a model on hardware: memory, baselines, degrees, scaling, bottlenecks, batch and precision."""
