#!/bin/bash
# The lines of 'setup', run k3f9q2. Each node's agent runs this script and continues in this shell, so that ranks
# inherit its limits.

serried_agent=("$@")
serried_log=$(mktemp 2>/dev/null || mktemp -p /tmp)
exec 3>&2
serried_continue() {
  export SERRIED_SETUP=$1
  trap - EXIT ERR
  cat "$serried_log" >&3
  rm -f "$serried_log"
  exec "${serried_agent[@]}" 2>&3 3>&-
}
serried_failed() { # a line failed, or `setup` has left this shell
  serried_continue "${serried_line:-it} ended with status $?: $(grep . "$serried_log" | tail -n 3 | paste -sd ' ')"
}
trap serried_failed EXIT
trap 'serried_line="\`$BASH_COMMAND\`"' ERR
for serried_init in "${LMOD_PKG-}/init/bash" "${MODULESHOME-}/init/bash" /etc/profile.d/*mod*.sh \
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /cvmfs/soft.computecanada.ca/config/profile/bash.sh; do
  [[ $(type -t module) == function ]] && break
  # shellcheck source=/dev/null
  [[ -r $serried_init ]] && source "$serried_init"
done
set -eE
# shellcheck disable=all # the user's lines follow
{ : # the lines may be empty
module load tiny
ulimit -l unlimited
} 2>"$serried_log"
set +eE
serried_continue ok
