#!/bin/bash
#SBATCH --job-name=requeued --time=0:30:00 --signal=B:USR1@120 --requeue --open-mode=append
#SBATCH --ntasks=1 --cpus-per-task=4

handler() {
  echo "caught USR1 at $(date)"
  scontrol requeue "$SLURM_JOB_ID"
}
trap handler USR1
if [ -f checkpoints/last.ckpt ]; then RESUME="--ckpt checkpoints/last.ckpt"; fi
echo "restart ${SLURM_RESTART_COUNT:-0}"
srun python train.py $RESUME &
wait $!
