"""`latchwork workflows`: one module for each kind of command.

It exports nothing: `main.py` takes the commands from the modules. What the extra `workflows` brings is imported when a
command runs, so that the others need none of it.
"""
