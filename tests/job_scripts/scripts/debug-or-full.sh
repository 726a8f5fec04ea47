#!/bin/bash
#SBATCH --cpus-per-task=2 --time=30
DEBUG=${DEBUG:-0}
if (( DEBUG )); then set -x; EPOCHS=1; else EPOCHS=100; fi
declare -A BATCH=([small]=64 [base]=32)
SIZE=base
OPTS=(--epochs "$EPOCHS" --batch "${BATCH[$SIZE]}")
[[ $SIZE == base ]] && OPTS+=(--checkpointing)
case $SIZE in small) ;; base|large) OPTS+=(--bf16) ;; esac
python train.py "${OPTS[@]}" --name "${SIZE^^}-$(printf %03d 7)"
