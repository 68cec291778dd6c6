"""What pytest collects here: the parsers are programs that a framework's own Python runs."""

collect_ignore_glob = ["*_parser.py"]
