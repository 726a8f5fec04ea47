#!/bin/bash --login
#SBATCH --job-name=resnet
#SBATCH --time=24:00:00
#SBATCH --gpus=8
#SBATCH --tasks-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-gpu=6
#SBATCH --mem-per-gpu=9G
#SBATCH --partition=batch
#SBATCH --constraint=v100
#SBATCH --output=results/%x/slurm-%j.out
#SBATCH --error=results/%x/slurm-%j.err
#SBATCH --export=ALL

set -e
TRAINING_SCRIPT=${TRAINING_SCRIPT:-train.py}
DATA_DIR=${DATA_DIR:-data}
PERSISTENT_LOGGING_DIR=results/$SLURM_JOB_NAME/logs
PERSISTENT_CHECKPOINTS_DIR=$PERSISTENT_LOGGING_DIR/checkpoints
mkdir -p $PERSISTENT_CHECKPOINTS_DIR $PERSISTENT_LOGGING_DIR/tensorboard
LOCAL_DIR=local/$SLURM_JOB_NAME
LOCAL_CHECKPOINTS_DIR=$LOCAL_DIR/checkpoints
mkdir -p $LOCAL_CHECKPOINTS_DIR

nvidia-smi dmon --delay 60 --options DT >> $PERSISTENT_LOGGING_DIR/nvidia-smi.log &
NVIDIA_SMI_PID=$!
python -m jupyterlab_nvdashboard.server 8000 &
DASHBOARD_PID=$!
tensorboard --logdir $LOCAL_DIR --port 6006 --bind_all &
TENSORBOARD_PID=$!

horovodrun -np $SLURM_NTASKS python $TRAINING_SCRIPT \
  --data-dir $DATA_DIR \
  --read-checkpoints-from $PERSISTENT_CHECKPOINTS_DIR \
  --write-checkpoints-to $LOCAL_CHECKPOINTS_DIR \
  --tensorboard-logging-dir $LOCAL_DIR/tensorboard \
  --batch-size 160 &
HOROVODRUN_PID=$!

RSYNC_DELAY_SECONDS=1
HOROVODRUN_STATE=$(ps -h --pid $HOROVODRUN_PID -o state | head -n 1 || true)
while [ "$HOROVODRUN_STATE" != "" ]; do
  sleep $RSYNC_DELAY_SECONDS
  HOROVODRUN_STATE=$(ps -h --pid $HOROVODRUN_PID -o state | head -n 1 || true)
done
cp -r $LOCAL_CHECKPOINTS_DIR/. $PERSISTENT_CHECKPOINTS_DIR
kill $NVIDIA_SMI_PID $DASHBOARD_PID $TENSORBOARD_PID 2> /dev/null || true
rsync -a $LOCAL_DIR/ $PERSISTENT_LOGGING_DIR
