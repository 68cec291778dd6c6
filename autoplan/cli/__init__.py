"""The command line: one command a file, which parses, calls one function, renders and exits."""
