"""Arguments of Megatron-LM in YAML files and in values of programs, under names of their own."""
