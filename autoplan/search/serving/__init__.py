"""Search of serving plans: engines, their operating points, and how many of each."""
