"""The choice of a scheme for a distributed matrix product, proven by CP-SAT."""
