"""One file per migration. Released files do not change.

A migration adds columns and tables. A later release removes columns that are no longer read.
"""
