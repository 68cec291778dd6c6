"""Launch configurations: written, read, compared with the best, and started."""
