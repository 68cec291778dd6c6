"""Communication between devices: meshes, collectives, volume, and overlap with compute."""
