"""The syntax of shell scripts: words, commands and compound statements."""
