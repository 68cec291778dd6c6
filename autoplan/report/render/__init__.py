"""Rendering: terminal, tables, bars, SVG, JSON and YAML."""
