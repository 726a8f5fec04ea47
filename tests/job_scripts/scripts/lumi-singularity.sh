#!/bin/bash -e
#SBATCH --job-name=lumi
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --tasks-per-node=8
#SBATCH --output="output_%x_%j.txt"
#SBATCH --time=0:10:0

module() { echo "module $*"; }
module use "$PWD/modules/EasyBuild"
module load LUMI/24.03 PyTorch/2.2

c=fe
MYMASKS="0x${c}000000000000,0x${c}00000000000000"
export NCCL_SOCKET_IFNAME=hsn
export NCCL_NET_GDR_LEVEL=3
export MASTER_ADDR=$(scontrol show hostname "$SLURM_NODELIST" | head -n1)
export MASTER_PORT=29500
export WORLD_SIZE=$SLURM_NPROCS
cat > select_gpu << 'EOF'
#!/bin/bash
export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
exec "$@"
EOF
chmod +x ./select_gpu
srun --cpu-bind=none ./select_gpu python -u train.py --model resnet50 --modelpath=/dev/null
rm -f ./select_gpu
