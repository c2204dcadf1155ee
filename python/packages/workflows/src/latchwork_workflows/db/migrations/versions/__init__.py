"""One file per migration. Released files do not change.

A migration adds columns and tables. A later release removes those that are no longer read.
"""
