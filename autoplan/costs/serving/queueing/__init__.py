"""Queues of serving: the scheduler of an engine and its clients, simulated and in closed form."""
