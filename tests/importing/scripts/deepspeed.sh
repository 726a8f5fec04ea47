#!/bin/bash
#SBATCH --gres=gpu:a100:4 --cpus-per-task=24 --mem=200G --time=12:00:00 --qos=long
source ~/.bashrc
conda activate ds
deepspeed --num_gpus=4 --master_port 29501 train.py --deepspeed ds_config.json --epochs 3
