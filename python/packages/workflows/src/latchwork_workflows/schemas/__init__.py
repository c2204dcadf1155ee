"""The schema of each resource: returned by services, sent by the API, printed by commands and shown by pages.

One module per resource. Importing these loads neither FastAPI nor SQLAlchemy. Times are seconds since the epoch.
"""
