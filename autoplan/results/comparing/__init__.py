"""Results of ``compare``: layouts side by side, and where their order changes."""
