"""What is stored beside workflows: what each may hold, and what of it a definition names.

Nothing is kept inside.
"""
