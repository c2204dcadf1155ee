"""How anything waits, owns and stops: names, patience, waiters, work under an ownership.

No primitive is here; every wing beside this one stands on it.
"""
