"""A LoRA fine-tune on the CPU, started with what ``autoplan emit --for trainer`` wrote."""
