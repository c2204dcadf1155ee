"""Commands that look at a store and change nothing, but for a lock freed by hand: `status`, `tree`, `why` and `locks`.

`main.py` alone imports these modules; each hands out what `command` of `options.py` made.
"""
