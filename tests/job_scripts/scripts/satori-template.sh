#!/bin/bash
#SBATCH -J myjob_4GPUs
#SBATCH -o myjob_4GPUs_%j.out
#SBATCH -e myjob_4GPUs_%j.err
#SBATCH --mail-user=someone@example.org
#SBATCH --mail-type=ALL
#SBATCH --gres=gpu:4
#SBATCH --gpus-per-node=4
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --exclusive

## User python environment
HOME2=$PWD
PYTHON_VIRTUAL_ENVIRONMENT=wmlce
CONDA_ROOT=$HOME2/anaconda3

## Activate the environment
[ -f ${CONDA_ROOT}/etc/profile.d/conda.sh ] && source ${CONDA_ROOT}/etc/profile.d/conda.sh
ulimit -s 8192
NODELIST=$(scontrol show hostnames $SLURM_JOB_NODELIST | sed "s/\$/:4/" | paste -sd, -)
echo " Running on $NODELIST"
echo " Run started at:- "; date
horovodrun -np $SLURM_NTASKS -H "$NODELIST" python $HOME2/train.py --batch 64
echo " Run completed at:- "; date
