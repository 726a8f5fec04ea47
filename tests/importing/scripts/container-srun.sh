#!/bin/bash
#SBATCH --job-name=vit
#SBATCH --ntasks-per-node=8
#SBATCH --nodes 2
#SBATCH --gres gpu:8
#SBATCH --cpus-per-task 10
#SBATCH --constraint "a100&nvlink"
#SBATCH --exclude=node[01-03],node7
#SBATCH --dependency=afterany:1234
#SBATCH --wckey=proj
#SBATCH --chdir=/scratch/ada/vit
#SBATCH --export=NONE
#SBATCH --begin=now+1hour
#SBATCH --reservation=course --qos=high
#SBATCH --cpu-freq=high
#SBATCH -o %x.out -e %x.err
#SBATCH bogus
#SBATCH --nodes=3
export PYTHONFAULTHANDLER=1; export NCCL_SOCKET_IFNAME=^docker0,lo
export LD_PRELOAD=
umask 027
srun --kill-on-bad-exit --label --output=rank-%t.log \
     apptainer exec --nv -B /scratch torch.sif \
     python -u main_pretrain.py --dist_url "tcp://$(hostname):3456" \
     --blr 1.5e-4 --output_dir ./out_${SLURM_JOB_ID} --accum_iter "${ACC:-1}"
RC=$?
[ $RC -eq 0 ] && touch DONE
exit $RC
