"""Whole applications built on latchwork, one folder each; they never import each other."""
