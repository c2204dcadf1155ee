"""Alerts and channels, as people see and change them, with their roles checked.

``seen`` is for routes and pages, ``part`` for the client.
"""
