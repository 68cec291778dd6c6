"""Valid lower bounds on time and memory."""
