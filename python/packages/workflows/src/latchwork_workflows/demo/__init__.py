"""`latchwork demo workflows`: a run whose worker is killed halfway, and completes with the right result.

``flow`` is the workflow, and ``fleet`` the processes that run it.
"""
