"""The agent of one node: it starts the ranks there, reports, stops them, and leaves nothing behind.

joining, setup   its role: enter what the job has set up, call the head, then be the `node`
exits            how ranks ended, as the head is told
"""
