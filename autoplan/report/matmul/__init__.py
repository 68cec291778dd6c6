"""Answers about one matrix product as documents and tables."""
