"""The primitives, each with its most important promise.

They are written once, above the store. What breaks here breaks because the backend does not keep the contract.
"""
