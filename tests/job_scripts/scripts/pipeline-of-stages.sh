#!/usr/bin/env bash
#SBATCH --job-name=pipeline --cpus-per-task=8 --mem=16G --time=3:00:00
set -euo pipefail

log() { printf '[%s] %s\n' "stage" "$*" >&2; }
stage() {
  local name=$1; shift
  if [[ -e ".done-$name" ]]; then log "$name: done already"; return; fi
  log "$name"
  "$@"
  touch ".done-$name"
}
stage download python -m pipeline.download --out data
stage tokenize python -m pipeline.tokenize --in data --workers "${SLURM_CPUS_PER_TASK:-1}"
stage train torchrun --standalone --nproc_per_node=2 -m pipeline.train --config conf/train.yaml
stage evaluate python -m pipeline.evaluate --metrics 'acc,f1'
