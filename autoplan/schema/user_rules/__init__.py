"""Users' rules: vocabulary, grammar, and partial evaluation."""
