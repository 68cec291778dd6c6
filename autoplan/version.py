"""The version of autoplan."""

__version__ = "0.2.0"
