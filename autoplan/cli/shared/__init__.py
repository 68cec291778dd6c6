"""What the commands share: output, progress, interrupts."""
