"""Lower bounds on the step of many choices of degrees at once, independent of the search."""
