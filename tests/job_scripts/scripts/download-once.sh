#!/bin/bash
#SBATCH --cpus-per-task=2 --mem=2G --time=10
DATA=data/cifar
if [ ! -d "$DATA" ]; then
  mkdir -p "$DATA"
  wget -q -O "$DATA/archive.tar" https://example.org/cifar.tar
fi
test -s conf.json || echo '{"lr": 0.1}' > conf.json
[[ -d results ]] || mkdir results
python train.py --data "$DATA" --conf conf.json
