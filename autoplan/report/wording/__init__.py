"""Answers in words: names of parts, sentences, and facts of entries."""
