"""What a worker does while its session lasts, limited plans, child plans, and how plans are removed.

It exports nothing: ``PlanWorker`` is the door.
"""
