#!/bin/bash
# Written by Serried: building conda from environment.yml
prefix='/home/ada/it'"'"'s mine/.serried/environments/conda-0123456789ab-c5d3'
output=$(mktemp 2>/dev/null || mktemp -p /tmp)
unable() {
  echo "$1:" >&2
  tail -n 9 "$output" >&2
  exit 70
}
for init in "${LMOD_PKG-}/init/bash" "${MODULESHOME-}/init/bash" /etc/profile.d/*mod*.sh \
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /cvmfs/soft.computecanada.ca/config/profile/bash.sh; do
  [[ $(type -t module) == function ]] && break
  # shellcheck source=/dev/null
  [[ -r $init ]] && source "$init"
done
try_module() { # version 3 exits with status 0 in any case
  if ! module "$@" 2>"$output" || grep -q ':ERROR:' "$output"; then unable "'module $*' failed"; fi
  cat "$output" >&2
  : >"$output"
}
try_module load gcc/11
rm -f "$output"
set -e
cd -- '/home/ada/it'"'"'s mine'
conda=/opt/conda/bin/conda
[[ ${conda##*/} == conda ]] || set -- --yes # conda itself does not ask, and may not know the option
"$conda" env create "$@" --quiet --prefix "$prefix" --file environment.yml
