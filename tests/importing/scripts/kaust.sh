#!/bin/bash
#SBATCH --time=24:00:00
#SBATCH --gpus=8
#SBATCH --tasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-gpu=6
#SBATCH --mem-per-gpu=90G
#SBATCH --constraint=v100
#SBATCH --constraint=cpu_intel_platinum_8260
#SBATCH --partition=batch
#SBATCH --output=../results/%x/slurm-%j.out
#SBATCH --error=../results/%x/slurm-%j.err

set -e
PERSISTENT=../results/$SLURM_JOB_NAME
LOCAL=/tmp/$SLURM_JOB_NAME/$SLURM_JOB_ID
mkdir -p $PERSISTENT/checkpoints $LOCAL/checkpoints
module purge
module load cuda/10.1.243
conda activate ../env

nvidia-smi dmon --delay 60 --options DT >> $PERSISTENT/nvidia-smi.log &
NVIDIA_SMI=$!
tensorboard --logdir $PERSISTENT --port 6006 --bind_all &
TENSORBOARD=$!

NCCL_DEBUG=INFO horovodrun -np $SLURM_NTASKS python $TRAINING_SCRIPT \
  --data-dir $DATA_DIR \
  --read-checkpoints-from $PERSISTENT/checkpoints \
  --write-checkpoints-to $LOCAL/checkpoints &
TRAINING=$!

while kill -0 $TRAINING 2> /dev/null; do
  rsync -a $LOCAL/ $PERSISTENT/
  sleep 600
done
kill $NVIDIA_SMI $TENSORBOARD
rsync -a $LOCAL/ $PERSISTENT/
