"""Rules of layouts: of the model, devices, workload, stack, search space and user."""
