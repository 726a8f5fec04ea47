#!/bin/bash
#SBATCH --time=10
#SBATCH --mem=1G
python a.py \
  --x 1
