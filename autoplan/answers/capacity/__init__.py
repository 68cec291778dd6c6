"""What the engines of a serving job hold."""
