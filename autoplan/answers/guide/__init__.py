"""How to train a model on hardware: memory, baselines, degrees, scaling, bottlenecks, batch and precision."""
