"""What a device holds over a step: model states, activations, buffers, and the timeline of all."""
