"""What job.sh and setup.sh say of the environment of the ranks."""

from __future__ import annotations

from string import Template

from serried.environments import activation
from serried.plan import Plan

ACTIVATE = """
# The environment of the ranks. What cannot be had ends the attempt, in its own words.
output=$(mktemp 2>/dev/null || mktemp -p /tmp)
unable() {
  local words
  words=$(grep . "$output" | head -n 3 | paste -sd ' ')
  "${agent[@]}" TELL --problem "$1${words:+: $words}"
  exit
}
"""

SETUP = Template("""\
#!/bin/bash
# The lines of 'setup', run $run. Each node's agent runs this and goes on in this shell: its limits are the ranks'.

serried_agent=("$$@")
serried_said=$$(mktemp 2>/dev/null || mktemp -p /tmp)
exec 3>&2
serried_go_on() {
  export SERRIED_SETUP=$$1
  trap - EXIT ERR
  cat "$$serried_said" >&3
  rm -f "$$serried_said"
  exec "$${serried_agent[@]}" 2>&3 3>&-
}
serried_failed() { # a line of it, or it has left this shell
  serried_go_on "$${serried_line:-it} ended with status $$?: $$(grep . "$$serried_said" | tail -n 3 | paste -sd ' ')"
}
trap serried_failed EXIT
trap 'serried_line="\\`$$BASH_COMMAND\\`"' ERR
${find}set -eE
# shellcheck disable=all # from here on it is the user's
{ : # may be all there is
$lines
} 2>"$$serried_said"
set +eE
serried_go_on ok
""")


def activate(plan: Plan, tell: str = 'fail-setup "${who[@]}"') -> str:
    """The part of job.sh that makes the environment active; empty where it is the inherited one.

    `tell` is the agent's role that hears why it cannot be.
    """
    lines = activation.lines(plan.environment)
    return f'{ACTIVATE.replace("TELL", tell)}{lines}rm -f "$output"\n' if lines else ""


def render_setup(plan: Plan) -> str | None:
    """setup.sh for `plan`, if it needs one."""
    lines = plan.environment.setup
    return SETUP.substitute(run=plan.run, find=activation.finder(lines), lines=lines) if lines else None
