"""The agent of one node: it starts the ranks there, reports, stops them, and leaves nothing behind.

node, setup   the agent; the user's `setup`, which runs before it
exits         how ranks ended, and when the head receives that
"""
