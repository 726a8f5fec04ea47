#!/usr/bin/env bash
#SBATCH -N 4 -n 4 --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --mem=0 --exclusive
#SBATCH -t 2-00:00:00
#SBATCH --exclude=bad01,bad02
#SBATCH --comment="two words"
#SBATCH --requeue --open-mode=append

set -euxo pipefail
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
export HF_HOME=$SCRATCH/hf HF_HUB_OFFLINE=1
CONFIG=configs/7b.yaml
ARGS=(
  --config "$CONFIG"
  --name "a run of $USER"
  --tags '{"model": "7b"}'   # as JSON
)
srun torchrun \
  --nnodes $SLURM_NNODES \
  --nproc_per_node 8 \
  --rdzv_id $RANDOM \
  --rdzv_backend c10d \
  --rdzv_endpoint $head_node_ip:29500 \
  -m llm.train "${ARGS[@]}"
