"""Plans as configurations of the frameworks that run them, and such configurations read back.

A target (``target``) is a framework or a launcher; ``registry`` finds it by name. ``frameworks`` has one
room or module for each, with both directions; ``scripts`` reads shell scripts without executing them.
"""
