"""What a job is, and what one run of it knows.

How runs are compared with what is wanted stays inside.
"""
