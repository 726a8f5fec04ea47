#!/bin/bash
# The lines of 'setup', run k3f9q2. Each node's agent runs this and goes on in this shell: its limits are the ranks'.

serried_agent=("$@")
serried_said=$(mktemp 2>/dev/null || mktemp -p /tmp)
exec 3>&2
serried_go_on() {
  export SERRIED_SETUP=$1
  trap - EXIT ERR
  cat "$serried_said" >&3
  rm -f "$serried_said"
  exec "${serried_agent[@]}" 2>&3 3>&-
}
serried_failed() { # a line of it, or it has left this shell
  serried_go_on "${serried_line:-it} ended with status $?: $(grep . "$serried_said" | tail -n 3 | paste -sd ' ')"
}
trap serried_failed EXIT
trap 'serried_line="\`$BASH_COMMAND\`"' ERR
for init in "${LMOD_PKG-}/init/bash" "${MODULESHOME-}/init/bash" /etc/profile.d/*mod*.sh \
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /cvmfs/soft.computecanada.ca/config/profile/bash.sh; do
  [[ $(type -t module) == function ]] && break
  # shellcheck source=/dev/null
  [[ -r $init ]] && source "$init"
done
set -eE
# shellcheck disable=all # from here on it is the user's
{ : # may be all there is
module load tiny
ulimit -l unlimited
} 2>"$serried_said"
set +eE
serried_go_on ok
