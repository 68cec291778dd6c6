"""A saved plan, checked without the solver."""
