"""What the YAML files may say: frozen models, the strict loader, the layout."""
