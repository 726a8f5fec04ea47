#!/bin/bash
#SBATCH --nodes=1 --ntasks=4 --cpus-per-task=1 --mem=4G --time=60

for worker in $(seq 1 $SLURM_NTASKS); do
  CUDA_VISIBLE_DEVICES=$((worker - 1)) python optimize.py --worker $worker > worker-$worker.log 2>&1 &
  pids+=($!)
done
fail=0
for pid in "${pids[@]}"; do wait $pid || fail=$((fail + 1)); done
echo "$fail workers failed"
exit $fail
