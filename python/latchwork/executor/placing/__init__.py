"""Where a task is put: who may run it, who is asked first, and what is known of how busy they are.

It keeps to itself how the members are followed. Where a task is put is a preference; who claims it runs it.
"""
