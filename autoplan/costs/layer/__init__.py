"""One layer on one microbatch: GEMMs, attention, experts, elementwise work, and their time."""
