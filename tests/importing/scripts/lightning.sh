#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --nodes=2            # two of them
#SBATCH --gres=gpu:v100:4
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=6 --mem=0
#SBATCH -t 24:00:00 -p gpu
#SBATCH -A def-ada
#SBATCH --output=logs/%x-%j.out
#SBATCH --mail-type=ALL --mail-user=ada@example.org
#SBATCH --signal=SIGUSR1@90
#SBATCH --array=0-9%2

module purge
module load cuda/12.1 python/3.11
source ~/venvs/torch/bin/activate
export NCCL_DEBUG=INFO
export WANDB_API_KEY=abcdef0123
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000))
export PYTHONPATH=$PWD/src:$PYTHONPATH
LR=0.1
ulimit -n 65536
cp -r data $SLURM_TMPDIR/data
echo "starting on $(hostname)"
srun python train.py --lr $LR --seed $SLURM_ARRAY_TASK_ID --num-nodes $SLURM_NNODES \
    --out "$SCRATCH/out/$SLURM_JOB_ID" 2>&1 | tee log
