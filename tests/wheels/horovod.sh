#!/usr/bin/env bash
# horovod.sh check: whether what Horovod is built with is here. `mpicxx` alone proves nothing: on Debian it comes with openmpi-bin, and
# the headers with libopenmpi-dev.
# horovod.sh PYTHON VERSION FOLDER: Horovod's wheel for the torch that PYTHON has, built into FOLDER if it is not there yet, and
# installed. No cache of pip's: it would hand out a wheel that was built for another torch, as their names are the same.
set -euo pipefail
can_build() {
  hash g++ cmake mpicxx 2>/dev/null && echo '#include <mpi.h>' | mpicxx -E -x c++ - >/dev/null 2>&1
}
if [[ $1 == check ]]; then
  can_build
  exit
fi
python=$1 version=$2
folder=$3/horovod-$version-$("$python" -c 'import sys, torch; print(f"torch-{torch.__version__}-{sys.implementation.cache_tag}")')
shopt -s nullglob
wheels=("$folder"/*.whl)
if [[ ${#wheels[@]} = 0 ]]; then
  if ! can_build; then
    printf "error: Horovod is built with g++, cmake, mpicxx and MPI's headers, and not all are here\n\n" >&2
    printf 'hint: on Debian and Ubuntu: apt-get install g++ cmake libopenmpi-dev\n' >&2
    exit 1
  fi
  echo "building Horovod $version (some three minutes; $folder/log) ..." >&2
  mkdir -p "$folder"
  CXX=$(cd "$(dirname "$0")" && pwd)/c++17 MAKEFLAGS=-j2 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    HOROVOD_WITH_GLOO=1 HOROVOD_WITH_MPI=1 "$python" -m pip wheel --no-cache-dir --no-build-isolation --no-deps \
    --wheel-dir "$folder" "horovod==$version" >"$folder/log" 2>&1 || { tail -n 30 "$folder/log" >&2; exit 1; }
  wheels=("$folder"/*.whl)
fi
"$python" -m pip install -qq --disable-pip-version-check --no-deps --force-reinstall "${wheels[@]}"
