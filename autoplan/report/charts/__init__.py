"""Pictures of memory, for a terminal and as SVG."""
