"""What an entry without measurements of its own takes from its nearest relatives."""
