"""Commands that run an application of ``latchwork.apps``: `demo`, `bench assign` and `bench cluster`.

`main.py` alone imports these modules; each hands out what `command` of `options.py` made.
"""
