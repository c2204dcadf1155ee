"""The cluster seen and steered from outside, by people and programs that are no node of it.

Takes no part in the work.
"""
