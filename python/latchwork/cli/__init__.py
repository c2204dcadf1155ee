"""The command line, an extra: ``entry.py`` is the console script, ``main.py`` builds the application.

One file per command. ``options.py``, ``outcome.py``, ``cluster.py`` and ``text.py`` are shared.
"""
