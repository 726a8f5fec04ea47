#!/bin/bash
#SBATCH --gres=gpu:1 --cpus-per-task=8 --mem=32G --time=1:00:00
PORT=$((8000 + RANDOM % 1000))
python -m vllm.entrypoints.openai.api_server --model small --port $PORT > server.log 2>&1 &
SERVER=$!
trap 'kill $SERVER 2> /dev/null' EXIT
for try in 1 2 3; do
  if python probe.py --port $PORT; then break; fi
done
python generate.py --base-url http://localhost:$PORT/v1 --out samples.jsonl
wc -l < /dev/null
