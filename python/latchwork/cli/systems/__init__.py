"""Commands of the systems other than the job cluster: executor, plans and worker groups.

One module per system. The commands of workflows are in their own distribution.
"""
