"""The guide to a model on hardware as tables and as a document."""
