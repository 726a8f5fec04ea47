"""The lines of bash that make an environment active: modules first, then what is found before them.

The same text stands in job.sh, is run for `check`, and begins what builds an environment. It calls a function
`unable`, which whoever uses it defines: `unable WHAT` says so, with the words in the file `$said`, and does not return.
"""

from __future__ import annotations

import re
import shlex

from serried.plan import Environment

FIND_MODULE = """\
for init in "${LMOD_PKG-}/init/bash" "${MODULESHOME-}/init/bash" /etc/profile.d/*mod*.sh \\
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /cvmfs/soft.computecanada.ca/config/profile/bash.sh; do
  [[ $(type -t module) == function ]] && break
  # shellcheck source=/dev/null
  [[ -r $init ]] && source "$init"
done
"""
"""`module` is a function that a shell like this one, which is nobody's login, may not have."""

LOAD = """\
try_module() { # version 3 says 0 whatever happens
  if ! module "$@" 2>"$said" || grep -q ':ERROR:' "$said"; then unable "'module $*' failed"; fi
  cat "$said" >&2
  : >"$said"
}
"""

VENV = """\
export VIRTUAL_ENV={prefix}
PATH=$VIRTUAL_ENV/bin:$PATH
unset PYTHONHOME CONDA_PREFIX CONDA_DEFAULT_ENV
[[ -x $VIRTUAL_ENV/bin/python ]] || unable "there is no Python in $VIRTUAL_ENV/bin"
"""

CONDA = """\
export CONDA_PREFIX={prefix} CONDA_DEFAULT_ENV={name} CONDA_SHLVL=1 PYTHONNOUSERSITE=1
PATH=$CONDA_PREFIX/bin:$PATH
unset PYTHONHOME VIRTUAL_ENV
[[ -x $CONDA_PREFIX/bin/python ]] || unable "there is no Python in $CONDA_PREFIX/bin"
for hook in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
  # shellcheck source=/dev/null
  [[ -r $hook ]] && source "$hook"
done
"""
"""As `conda activate` does it, without conda. It leaves ~/.local out, which would be found before the environment."""


def lines(environment: Environment) -> str:
    """What makes `environment` active; empty where everything is inherited."""
    modules = [["purge"]] if environment.module_purge else []
    modules += [["load", name] for name in environment.modules]
    parts = []
    if modules:
        parts += [FIND_MODULE, LOAD, *(f"try_module {shlex.join(words)}\n" for words in modules)]
    if environment.venv:
        parts.append(VENV.format(prefix=shlex.quote(environment.venv)))
    if environment.conda:
        name = environment.conda.rpartition("/")[2]
        parts.append(CONDA.format(prefix=shlex.quote(environment.conda), name=shlex.quote(name)))
    return "".join(parts)


def finder(setup: str) -> str:
    """What lets the lines of `setup` say `module`, if they do."""
    return FIND_MODULE if re.search(r"\b(module|ml)\b", setup) else ""
