#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=4
#SBATCH --time=1:00:00

set +e
EPOCHS=${EPOCHS:-10}
mpirun -np $SLURM_NTASKS -bind-to none -map-by slot --oversubscribe \
  -x NCCL_DEBUG=INFO -x PATH -mca pml ob1 -mca btl ^openib \
  python train.py --epochs $EPOCHS --checkpoint-dir checkpoints &
pid=$!
while kill -0 $pid 2> /dev/null; do sleep 0.2; done
wait $pid
status=$?
rsync -a checkpoints/ results/
exit $status
