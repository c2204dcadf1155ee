"""What a worker does from the beginning of a session to its end, the places of limited plans, and how plans are removed.

It exports nothing: ``PlanWorker`` is the door.
"""
