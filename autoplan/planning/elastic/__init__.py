"""Jobs whose devices change while they run."""
