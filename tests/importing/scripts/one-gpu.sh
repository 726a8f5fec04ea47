#!/bin/bash
#SBATCH --job-name="my experiment"
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=1-12
#SBATCH --licenses=matlab:1,foo
#SBATCH --nodelist=gpu07
##SBATCH --partition=debug
# SBATCH --qos=high
date
cd experiments/first
python train.py --name "it's \"quoted\"" --out ${SCRATCH}/out --lr=1e-3 > log.txt 2>&1
#SBATCH --mem=64G
