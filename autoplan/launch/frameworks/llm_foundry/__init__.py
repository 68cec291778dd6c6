"""llm-foundry: the YAML files of its training script, which Composer's FSDP runs."""
