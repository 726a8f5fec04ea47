#!/bin/bash
#SBATCH --time=2:00:00
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
module load singularity/3.5
rsync -a $HOME/images/train.sif $SLURM_TMPDIR/
singularity exec --nv --cleanenv --no-home --contain --writable-tmpfs -B $SCRATCH/digits:/data $SLURM_TMPDIR/train.sif python main.py --data /data
