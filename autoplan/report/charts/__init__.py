"""Charts of step time and memory, for a terminal and as SVG."""
