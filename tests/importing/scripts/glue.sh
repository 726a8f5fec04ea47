#!/bin/bash
#SBATCH --job-name=bert
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --mem=64GB
#SBATCH --time=05:00:00
#SBATCH --output=%x_%j.out

# set up
module purge
module load anaconda/2022.10
__conda_setup="$('/opt/anaconda/bin/conda' 'shell.bash' 'hook' 2> /dev/null)"
eval "$__conda_setup"
unset __conda_setup
conda activate /scratch/ada/envs/bert
cd /scratch/ada/bert || exit
mkdir -p logs
export TRANSFORMERS_CACHE=/scratch/ada/cache
export TOKENIZERS_PARALLELISM=false
export CUDA_LAUNCH_BLOCKING=1
export HF_TOKEN=hf_0123
pip install --user -r requirements.txt
wget -nc https://example.org/data.zip && unzip -n data.zip
nvidia-smi
python - <<'PY'
import torch
print(torch.cuda.is_available())
PY
EPOCHS=${1:-3}
for SEED in 1 2 3; do
    torchrun --nproc_per_node=2 run_glue.py --seed $SEED --num_train_epochs $EPOCHS
done
echo "done"
