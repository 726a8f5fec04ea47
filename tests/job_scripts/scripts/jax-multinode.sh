#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=8 --time=15
export XLA_FLAGS="--xla_gpu_enable_triton_gemm=false --xla_dump_to=xla"
export COORDINATOR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):1234
srun --output=logs-%t.txt --cpu-bind=cores python train_jax.py --coordinator $COORDINATOR --num_processes $SLURM_NTASKS
cat logs-*.txt | sort > all.txt
