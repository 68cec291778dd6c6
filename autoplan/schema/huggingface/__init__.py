"""Hugging Face config.json files read as models."""
