#!/bin/bash
#SBATCH --gres=gpu:v100l:1 --cpus-per-task=12 --mem=64G --time=0-20:00 --account=def-ada
module load StdEnv/2023 python/3.11
virtualenv --no-download $SLURM_TMPDIR/env
source $SLURM_TMPDIR/env/bin/activate
pip install --no-index -r requirements.txt
tar xf ~/projects/def-ada/data.tar -C $SLURM_TMPDIR
IFS=',' read -r lr bs < settings.csv
[[ $lr == 0.1 ]] && WARM=--warm
OPTS=""
if [[ -n $WARM ]]; then OPTS="$OPTS $WARM"; fi
OPTS="$OPTS --quiet"
torchrun --nproc_per_node=1 -- train.py $OPTS --data $SLURM_TMPDIR/data --out $SLURM_TMPDIR/out --lr "$lr" --bs "$bs"
cp -r $SLURM_TMPDIR/out ~/scratch/results-$SLURM_JOB_ID
