"""Public launch files read and scored: values that are right, open and wrong, and files that are refused."""
