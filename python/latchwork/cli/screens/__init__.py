"""Commands that inspect a store: `show`, `status`, `tree`, `why` and `locks`. Only a forced release changes
anything.
"""
