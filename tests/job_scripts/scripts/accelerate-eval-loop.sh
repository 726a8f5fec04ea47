#!/bin/bash
#SBATCH --job-name=eval --gres=gpu:1 --cpus-per-task=8 --mem=32G --time=2:00:00

MODELS=("org/base" "org/tuned one")
TASKS="math,code"
for model in "${MODELS[@]}"; do
  for shots in 0 5; do
    name=$(echo "$model" | tr '/ ' '__')
    [ -f "results/$name-$shots.json" ] && { echo "skipping $name"; continue; }
    mkdir -p results
    accelerate launch --num_processes=1 evaluate.py --model_args "pretrained=$model,dtype=bfloat16" \
      --tasks $TASKS --num_fewshot $shots --output_path results/$name-$shots.json
  done
done
