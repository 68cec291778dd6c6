"""The devices together: meshes, collectives, overlap with compute, and communication volume."""
