#!/bin/bash
#SBATCH --time=1:00:00
main() {
  local out=$1
  python train.py --out "$out"
}
main "$@"
