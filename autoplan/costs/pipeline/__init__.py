"""Pipeline schedules and their critical path."""
