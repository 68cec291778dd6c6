"""Hardware, models, software, and the schemas of files."""
