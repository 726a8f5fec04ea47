"""Checks of the job's nodes and of the network between them, before ranks start.

Agents report facts, and the head says what they mean: `schema.checks` has the findings.
"""
