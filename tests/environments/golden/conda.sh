#!/bin/bash
# Builds the environment /home/ada/it's mine/.serried/environments/conda-0123456789ab-c5d3 from /home/ada/it's mine/file. Written by Serried.
prefix='/home/ada/it'"'"'s mine/.serried/environments/conda-0123456789ab-c5d3'
said=$(mktemp 2>/dev/null || mktemp -p /tmp)
unable() {
  echo "$1:" >&2
  tail -n 9 "$said" >&2
  exit 70
}
for init in "${LMOD_PKG-}/init/bash" "${MODULESHOME-}/init/bash" /etc/profile.d/*mod*.sh \
  /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /cvmfs/soft.computecanada.ca/config/profile/bash.sh; do
  [[ $(type -t module) == function ]] && break
  # shellcheck source=/dev/null
  [[ -r $init ]] && source "$init"
done
try_module() { # version 3 says 0 whatever happens
  if ! module "$@" 2>"$said" || grep -q ':ERROR:' "$said"; then unable "'module $*' failed"; fi
  cat "$said" >&2
  : >"$said"
}
try_module load gcc/11
rm -f "$said"
set -e
cd -- '/home/ada/it'"'"'s mine'
conda=/opt/conda/bin/conda
[[ ${conda##*/} == conda ]] || set -- --yes # conda itself does not ask, and may not know the option
"$conda" env create "$@" --quiet --prefix "$prefix" --file environment.yml
