"""The hardware of this machine and of its job: ``hardware: auto``."""
