#!/bin/bash
#SBATCH --cpus-per-task=2 --time=30
WORK=$(mktemp -d "$PWD/work.XXXXXX")
finish() {
  code=$?
  mkdir -p saved
  cp -r "$WORK"/. saved/
  rm -rf "$WORK"
  exit $code
}
trap finish EXIT
cp -r src "$WORK"
cd "$WORK"
python src/train.py --out out
