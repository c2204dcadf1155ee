"""What can be set: of a job, of the cluster, of a node, at construction or while it runs.

How settings are followed stays inside.
"""
