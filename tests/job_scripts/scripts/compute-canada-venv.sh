#!/bin/bash
#SBATCH --gres=gpu:2
#SBATCH --tasks-per-node=2
#SBATCH --mem=8G
#SBATCH --time=0-03:00
#SBATCH --output=%N-%j.out
#SBATCH --account=def-someone

TMP=${SLURM_TMPDIR:-$PWD/tmp}
mkdir -p $TMP/env/bin
echo 'export VIRTUAL_ENV=venv' > $TMP/env/bin/activate
source $TMP/env/bin/activate
pip install --no-index torch torchvision
export TORCH_NCCL_ASYNC_HANDLING=1
export MASTER_ADDR=$(hostname)
echo "r$SLURM_NODEID master: $MASTER_ADDR"
echo "r$SLURM_NODEID Launching python script"
srun python cifar.py --init_method tcp://$MASTER_ADDR:3456 --world_size $((SLURM_NTASKS_PER_NODE * SLURM_JOB_NUM_NODES)) --batch_size 256
