"""Programs around the Hugging Face Trainer: its own arguments, axolotl and LLaMA-Factory."""
