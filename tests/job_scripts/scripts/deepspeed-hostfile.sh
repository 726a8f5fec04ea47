#!/bin/bash
#SBATCH --job-name=ds
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --time=1-00:00:00

set -u
HOSTFILE=hostfile.$SLURM_JOB_ID
rm -f "$HOSTFILE"
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  echo "$host slots=4" >> "$HOSTFILE"
done
MASTER=$(head -n 1 "$HOSTFILE" | cut -d' ' -f1)
export CUDA_DEVICE_MAX_CONNECTIONS=1
deepspeed --hostfile "$HOSTFILE" --master_addr "$MASTER" --master_port 29511 --no_ssh_check \
  train.py --deepspeed --deepspeed_config ds_config.json --seed 42
status=$?
rm -f "$HOSTFILE"
exit $status
