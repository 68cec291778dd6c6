"""Results of ``guide``: the way from one device to the best layout, and what limits it."""
