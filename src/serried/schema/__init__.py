"""The interface between the two sides of the scheduler: names, files and schemas.

The submitting side (`serried.*`) and the compute node (`serried.agent`) share nothing else. This room runs on Python
3.9 with the standard library alone, because it travels inside `agent.pyz`.
"""

SCHEMA = 1
"""Version of every JSON document that Serried writes. Readers refuse a higher one."""
