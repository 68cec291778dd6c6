"""Use cases of one matrix product: what it takes on one device, and how to split it over several."""
