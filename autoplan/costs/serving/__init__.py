"""Cost of serving (inference): key-value cache."""
