#!/bin/bash -l
#SBATCH --job-name=mnist-ddp
#SBATCH --partition=shared-gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=6
#SBATCH --mem-per-cpu=4G
#SBATCH --gres=gpu:2
#SBATCH --time=0:15:00

module load GCCcore/11.3.0 Python/3.10.4
module load CUDA/11.7 NCCL/2.12.12-CUDA-11.7.0

VENV_PATH=$HOME/venv/mnist-ddp
if [ ! -d "$VENV_PATH" ]; then
  python3 -m venv "$VENV_PATH"
fi
source $VENV_PATH/bin/activate
pip install -r ../requirements.txt

# A port of its own for each job.
export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
master_addr=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$master_addr
echo "MASTER_ADDR=$MASTER_ADDR"
export nproc_per_node=2
# export NCCL_DEBUG=INFO

srun python3 ../main.py --epochs 14 --no-wandb
deactivate
