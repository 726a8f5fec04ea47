#!/bin/bash
# Written by Serried: building conda from environment.yml
prefix='/home/ada/it'"'"'s mine/.serried/environments/conda-0123456789ab-c5d3'
serried_output=$(mktemp 2>/dev/null || mktemp -p /tmp)
serried_unable() {
  echo "$1:" >&2
  tail -n 9 "$serried_output" >&2
  exit 70
}
for serried_init in "${LMOD_PKG-}/init/bash" "${MODULESHOME-}/init/bash" /etc/profile.d/*mod*.sh \
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /cvmfs/soft.computecanada.ca/config/profile/bash.sh; do
  [[ $(type -t module) == function ]] && break
  # shellcheck source=/dev/null
  [[ -r $serried_init ]] && source "$serried_init"
done
serried_try_module() { # version 3 exits with status 0 in any case
  { module "$@" 2>"$serried_output" && ! grep -q ':ERROR:' "$serried_output"; } || serried_unable "'module $*' failed"
  cat "$serried_output" >&2
  : >"$serried_output"
}
serried_try_module load gcc/11
rm -f "$serried_output"
set -e
cd -- '/home/ada/it'"'"'s mine'
conda=/opt/conda/bin/conda
[[ ${conda##*/} == conda ]] || set -- --yes # conda itself does not ask, and may not know the option
"$conda" env create "$@" --quiet --prefix "$prefix" --file environment.yml
