"""Commands of the systems beside the job cluster: one module each.

It exports nothing: `main.py` takes the commands from the modules.
"""
