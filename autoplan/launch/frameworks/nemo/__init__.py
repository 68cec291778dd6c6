"""NeMo: YAML files of NeMo 1 and its launcher, and overrides of NeMo 2's recipes."""
