"""torchtitan: overrides of a configuration function, and TOML files of versions before 0.3.0."""
