"""What a layout costs: pure functions over frozen data, in SI units."""
