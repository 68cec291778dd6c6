"""Arguments of engines by version: the lists, and settings as arguments and back.

The lists in ``specs/interfaces`` are made from published wheels by
``benchmarks/serving/tabulating/tabulate_arguments.py``; no flag is emitted that the version lacks.
"""
