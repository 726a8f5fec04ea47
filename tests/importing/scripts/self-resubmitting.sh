#!/bin/bash
#SBATCH --gres=gpu:2 --ntasks=2 --cpus-per-task=3 --mem-per-gpu=20G --time=12:00:00 --signal=B:USR1@120
resubmit() {
  scontrol requeue $SLURM_JOB_ID
}
trap resubmit USR1
sbatch --dependency=afterok:$SLURM_JOB_ID $0
ssh login1 "cd $PWD && sbatch next.sh"
module use /opt/modules
module load gcc/12 && export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH
cat > params.json <<END
{"lr": $LR, "note": "srun python not.py"}
END
srun -n 2 --gpu-bind=closest python train.py --params params.json --in "$1" &
wait
