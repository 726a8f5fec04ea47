#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2 --time=10
export MASTER=$(scontrol show hostnames $SLURM_JOB_NODELIST | sed -n 1p)
cat > launch_node.sh <<EOF
#!/bin/bash
python -m torch.distributed.launch --nproc_per_node=2 --nnodes=$SLURM_NNODES --node_rank=\$SLURM_NODEID \\
  --master_addr=$MASTER --master_port=1234 train.py --fp16
EOF
chmod +x launch_node.sh
srun ./launch_node.sh
