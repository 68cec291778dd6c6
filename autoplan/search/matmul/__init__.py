"""The choice of a scheme for a distributed matrix product, by enumeration."""
