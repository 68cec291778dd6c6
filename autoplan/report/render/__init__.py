"""What answers are drawn with: terminal, columns, bars, SVG, JSON and YAML."""
