"""What one matrix product takes, on one device or distributed."""
