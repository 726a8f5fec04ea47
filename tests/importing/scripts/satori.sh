#!/bin/bash
#SBATCH -J horovod_mnist
#SBATCH -o horovod_mnist_%j.out
#SBATCH -e horovod_mnist_%j.err
#SBATCH --mail-user=ada@example.org
#SBATCH --mail-type=ALL
#SBATCH --gres=gpu:4
#SBATCH --gpus-per-node=4
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --mem=0
#SBATCH --time=10:00:00
#SBATCH --exclusive
#SBATCH -p sched_system_all

HOME2=/nobackup/users/$(whoami)
PYTHON_VIRTUAL_ENVIRONMENT=wmlce
CONDA_ROOT=$HOME2/anaconda3

source ${CONDA_ROOT}/etc/profile.d/conda.sh
conda activate $PYTHON_VIRTUAL_ENVIRONMENT
ulimit -s unlimited

NODELIST=nodelist.$
srun -l bash -c 'hostname' | sort -k 2 -u | awk '{print $2":4"}' > $NODELIST
cat $NODELIST
HOSTS=$(cat $NODELIST | paste -sd,)
echo "$SLURM_NTASKS ranks on $HOSTS"

export NODELIST=$NODELIST
export HOROVOD_GPU_ALLREDUCE=NCCL
export NCCL_DEBUG=INFO
date
horovodrun -np $SLURM_NTASKS -H $HOSTS python train_mnist.py --epochs 12
date
