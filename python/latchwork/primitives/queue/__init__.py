"""Work queues of items that consumers claim, and queues in order of arrival or priority on top of them.

How items are read, claimed and ended is private to this package.
"""
