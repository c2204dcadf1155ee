"""The schema of each resource: returned by services, sent by the API, printed by commands and shown by pages."""
