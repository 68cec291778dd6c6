"""Schema of serving: jobs, layouts of engines, engines by version, formats of weights and caches."""
