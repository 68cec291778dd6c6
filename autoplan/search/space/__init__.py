"""What there is to choose: candidates, orders of ranks, contents of stages, and their prices."""
