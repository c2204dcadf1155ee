"""Alerts in the database: what is to be told, by which channels, and how far each delivery is.

Who writes a fact writes its alert in the same transaction; one sender at a time moves the deliveries.
"""
