"""Layouts side by side as tables and as a document."""
