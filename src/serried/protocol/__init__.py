"""What both sides of the scheduler agree on.

The submitting side (`serried.*`) and the compute node (`serried.agent`) meet only through the names,
files and schemas in this room. It runs on Python 3.9 with the standard library alone, because it travels
inside `agent.pyz`.
"""

SCHEMA = 1
"""Version of every JSON document that Serried writes. Readers refuse a higher one."""
