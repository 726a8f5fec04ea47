#!/bin/bash
#SBATCH --account=def-ada
#SBATCH --gres=gpu:v100l:4
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=0:20:00
#SBATCH --mail-user=ada@example.org
#SBATCH --mail-type=ALL

cd $SLURM_SUBMIT_DIR
module load gcc cuda nccl openmpi
source venvhpc/bin/activate
export OMP_NUM_THREADS=6
export MASTER_PORT=29400
export MASTER_ADDR=$(hostname)

CUDA_VISIBLE_DEVICES=0 python main.py --batch_size=768 -m=single
CUDA_VISIBLE_DEVICES=0,1,2,3 python main.py --dp --batch_size=3072 -m=dp
torchrun --nnodes=1 --nproc_per_node=4 --master_port=$MASTER_PORT main.py --ddp --batch_size=3072 -m=ddp
mpirun -np $SLURM_NTASKS -x MASTER_ADDR=$(hostname) -x MASTER_PORT=29400 -x PATH -bind-to none \
  -map-by :OVERSUBSCRIBE -mca pml ob1 -mca btl ^openib python main.py --ddp --batch_size=6144 -m=mpi
srun --nodes=2 --ntasks-per-node=1 --ntasks=2 torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id=$SLURM_JOB_ID \
  --rdzv_backend=c10d --rdzv_endpoint=$(hostname):$MASTER_PORT main.py --ddp --batch_size=6144 -m=srun
