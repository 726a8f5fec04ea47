#!/bin/bash
#SBATCH --job-name=cfd
#SBATCH --nodes=2
#SBATCH --time=2:00:00
#SBATCH --mem=0
#SBATCH --cpus-per-task=4
mpirun --map-by ppr:4:node:PE=4 --bind-to=core --rank-by slot --mca btl tcp,self --timeout 60 -genvall \
  singularity exec --pwd /workspace -B /data cfd.sif python train.py
mpiexec -pernode -hostfile hosts python gather.py
srun --ntasks=1 apptainer exec --pwd "$(pwd)" --pwd=$SLURM_SUBMIT_DIR/ cfd.sif python report.py
srun --ntasks=1 --container-image=a.sqsh --container-workdir=/x/y python report.py
