#!/bin/bash
#SBATCH --job-name=torchrun_dist-digits-first
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --gres=gpu:v100l:4
#SBATCH --mem=64G
#SBATCH --time=00-01:00:00
#SBATCH --account=rrg-ada
#SBATCH --output=/scratch/ada/digits/hpc_outputs/torchrun_first_%N_%j.out
#SBATCH --export=ALL,exp_name=first,WANDB_API_KEY=0123456789abcdef

module load python/3.9 cuda/11.4
export scratch_dir=$SCRATCH/digits
export MASTER_ADDR=$(hostname)
export MASTER_PORT=2345
export NCCL_ASYNC_ERROR_HANDLING=1

source $HOME/digits/virtual_env/bin/activate
gpus=$(echo $CUDA_VISIBLE_DEVICES | tr ',' ' ' | wc -w)

for node in $(scontrol show hostnames $SLURM_JOB_NODELIST); do
  srun -w $node -N 1 -n 1 tar -xf $scratch_dir/tar_ball_datasets.tar -C $SLURM_TMPDIR &
done
wait
for node in $(scontrol show hostnames $SLURM_JOB_NODELIST); do
  srun -w $node -N 1 -n 1 torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d \
    --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT --max_restarts=3 main.py --data_dir=$SLURM_TMPDIR/datasets --lr 0.1 &
done
wait
