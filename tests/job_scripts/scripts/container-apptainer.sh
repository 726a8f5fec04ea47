#!/bin/bash
#SBATCH --gres=gpu:2 --cpus-per-task=8 --mem=32G --time=1:00:00
IMAGE=${IMAGE:-images/torch.sif}
BIND="$PWD:/code,/tmp:/scratch"
apptainer exec --nv --cleanenv --bind "$BIND" --env MASTER_PORT=29500 "$IMAGE" \
  torchrun --nproc_per_node=2 /code/train.py --data /scratch/data
