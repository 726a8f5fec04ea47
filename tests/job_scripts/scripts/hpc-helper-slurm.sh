#!/bin/bash
#SBATCH --nodes 1
#SBATCH --gres=gpu:2
#SBATCH --tasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=0-00:30:00

if type module > /dev/null 2>&1; then module use $PWD/modulefiles; fi
export PROJECT=$PWD OMP_NUM_THREADS=4
main_log=log.txt
while true; do nvidia-smi >> gpu.txt; sleep 30; done &
watcher=$!

echo "dp" > $main_log
python main.py --method dp --epochs 5
echo "ddp" >> $main_log
export MASTER_ADDR=$(hostname -s) MASTER_PORT=29401
torchrun --nproc_per_node=2 --nnodes=1 --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d \
  --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT main.py --method ddp --epochs 5
srun --ntasks=2 python main.py --method srun --epochs 5
kill $watcher
