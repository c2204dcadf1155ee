"""Alerts and channels, as people see and change them: ``seen`` for routes and pages, ``part`` of the client."""
