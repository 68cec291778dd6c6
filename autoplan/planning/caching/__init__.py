"""Answers that are kept, so that the same question from many processes costs one search."""
