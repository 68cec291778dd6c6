"""Launchers: what starts a framework's program on the nodes of a cluster, with the arguments of a plan."""
