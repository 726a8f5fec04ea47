#!/bin/bash
#SBATCH --job-name=cv --cpus-per-task=4 --mem=4G --time=2:00:00
FOLDS=5
metrics=()
for ((fold = 0; fold < FOLDS; fold++)); do
  python train.py --fold $fold --out cv/$fold || { echo "fold $fold failed"; continue; }
  metrics+=("cv/$fold/metrics.json")
done
(( ${#metrics[@]} )) && python summarize.py "${metrics[@]}" > cv-summary.txt
