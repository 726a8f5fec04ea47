#!/bin/bash
#SBATCH --cpus-per-task=4 --mem=8G --time=10
eval "$(conda shell.bash hook 2> /dev/null | grep -v '^conda')"
conda activate torch-env
which python > /dev/null
export PYTHONPATH="${PYTHONPATH}:$PWD/src"
python src/main.py --config conf/a.yaml --seed ${SEED:-1}
conda deactivate
