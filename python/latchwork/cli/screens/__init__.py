"""Commands that inspect a store: `show`, `status`, `tree`, `why` and `locks`.

One module per command. Only a forced release changes anything.
"""
