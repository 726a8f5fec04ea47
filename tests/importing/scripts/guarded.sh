#!/bin/sh
#SBATCH -t 60 -c4
module load julia
time srun --cpus-per-task=$SLURM_CPUS_PER_TASK julia --project=. run.jl > out.txt || { echo failed; exit 1; }
