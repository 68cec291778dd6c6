"""Cost of serving (inference): memory, iterations, queues and pools of engines."""
