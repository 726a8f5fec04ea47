#!/bin/bash
#SBATCH --gres=gpu:1 --cpus-per-task=4 --time=30
LOGS=tb
mkdir -p $LOGS
tensorboard --logdir $LOGS --host 0.0.0.0 --port 0 > tb.log 2>&1 &
TB=$!
python train.py --logdir $LOGS
RC=$?
kill $TB 2> /dev/null
wait $TB 2> /dev/null
exit $RC
