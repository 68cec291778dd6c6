"""The best layouts of a job."""
