"""What is to run: workflows as Python, YAML or JSON, and every problem of one that cannot run, by its place.

How text becomes a definition is kept inside; a ``Definition`` that is handed out is valid.
"""
