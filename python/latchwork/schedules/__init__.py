"""When something runs next: fixed delay, fixed rate, cron, and which fire times are owed. Pure.

The time always comes in as an argument; nothing here knows of jobs, stores or threads.
"""
