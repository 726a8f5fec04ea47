#!/bin/bash
#SBATCH --job-name=resnet-50
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:v100:4
#SBATCH --cpus-per-task=4
#SBATCH --mem=180G
#SBATCH --time=24:00:00
#SBATCH --dependency=singleton --kill-on-invalid-dep=yes
set -euo pipefail
trap 'kill $(jobs -p)' EXIT
module load cuda/10.1.243
source activate ./env
for host in $(scontrol show hostname); do
  echo "$host slots=4" >> hosts.$SLURM_JOB_ID
done
mpirun -np 8 --hostfile hosts.$SLURM_JOB_ID -bind-to none -map-by slot -mca pml ob1 -mca btl ^openib \
  python train.py --epochs 10 --batch-size 160 &
training=$!
wait $training
exit $?
