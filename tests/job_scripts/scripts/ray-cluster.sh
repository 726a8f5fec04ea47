#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=4 --time=15
set -u
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=${nodes_array[0]}
port=6379
srun --nodes=1 --ntasks=1 -w "$head_node" --overlap python start_ray.py --head --port=$port --block &
sleep 0.5
worker_num=$((SLURM_JOB_NUM_NODES - 1))
for ((i = 1; i <= worker_num; i++)); do
  srun --nodes=1 --ntasks=1 -w "${nodes_array[$i]}" --overlap python start_ray.py --address "head:$port" --block &
done
wait
python -u tune.py --address "head:$port" --num-cpus "$((SLURM_CPUS_PER_TASK * SLURM_JOB_NUM_NODES))"
