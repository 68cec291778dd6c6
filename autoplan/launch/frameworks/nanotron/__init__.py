"""nanotron: its YAML files read back, with the layers that its balance gives to stages."""
