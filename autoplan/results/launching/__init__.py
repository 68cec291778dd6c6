"""Values on files that frameworks are launched with."""
