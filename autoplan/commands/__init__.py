"""What commands share: options, output, progress, interrupts."""
