#!/bin/bash
#SBATCH -p cpu -c 16 --mem 32G -t 2:00:00
source .venv/bin/activate
python prepare.py --in data
python train.py --workers $SLURM_CPUS_PER_TASK
python report.py | tee report.txt
