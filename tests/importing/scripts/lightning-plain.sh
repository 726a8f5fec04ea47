#!/usr/bin/env bash
#SBATCH --job-name=resnet
#SBATCH --account=def-ada
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:v100l:4
#SBATCH --cpus-per-task=6
#SBATCH --mem=128G
#SBATCH --time=0-12:00
#SBATCH --mail-user=ada@example.org
#SBATCH --mail-type=BEGIN
#SBATCH --mail-type=END
#SBATCH --output=%x-%j.out

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
module purge
module load StdEnv/2023 python/3.11 cuda/12.2
source /home/ada/venvs/torch/bin/activate

export NCCL_DEBUG=INFO OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
echo "Start: $(date)  nodes: $SLURM_JOB_NODELIST"
srun --kill-on-bad-exit=1 python -m resnet.train --nodes=$SLURM_NNODES --devices "$SLURM_NTASKS_PER_NODE" 'model={"d":1}'
echo "End: $(date)"
