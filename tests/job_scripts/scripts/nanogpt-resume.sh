#!/bin/bash
#SBATCH -J gpt-long -N 1 -n 1 -c 16 --gres=gpu:4 -t 0-08:00:00

OUT=out/gpt-long
if compgen -G "$OUT/ckpt*.pt" > /dev/null; then
  INIT=resume
else
  INIT=scratch
fi
torchrun --standalone --nproc_per_node=4 train.py config/long.py --out_dir=$OUT --init_from=$INIT
