"""Programs that run in the child of a task: started by path, so they import nothing of ours.

They are copied, never imported by the package.
"""
