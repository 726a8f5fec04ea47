#!/bin/bash -l
#SBATCH --job-name test-job
#SBATCH -N2 -n8 --gpus=8
#SBATCH --mem-per-cpu 2G
#SBATCH --time 1-0
#SBATCH --mail-type=begin --mail-user ada@example.org
#SBATCH --mail-type=end
export APPTAINER_BIND="/scratch,/data"
apptainer exec --nv --bind /scratch:/scratch,/data --env FOO=bar images/torch.sif torchrun --standalone --nproc_per_node=gpu train.py --epochs 5
