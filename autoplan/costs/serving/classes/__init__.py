"""Latencies of each class of requests of an engine that serves several classes."""
