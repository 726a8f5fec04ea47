"""The files of a run directory for compute nodes: job.sh and setup.sh from the plan, agent.pyz, library.zip."""

from __future__ import annotations

from serried.submission.script.job import render, render_attach, render_errand, render_join, render_setup, render_shell
from serried.submission.script.package import agent, library, put

__all__ = [
    "agent",
    "library",
    "put",
    "render",
    "render_attach",
    "render_errand",
    "render_join",
    "render_setup",
    "render_shell",
]
