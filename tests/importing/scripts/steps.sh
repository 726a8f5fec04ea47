#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=1G
#SBATCH --time=00:30:00
srun --exclusive -N1 -n1 python a.py --part 1 &
srun --exclusive -N1 -n1 python a.py --part 2 &
wait
