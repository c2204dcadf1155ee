"""Helpers for all layers. They know nothing about stores."""
