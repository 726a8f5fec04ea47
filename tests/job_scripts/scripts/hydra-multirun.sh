#!/bin/bash
#SBATCH --job-name=hydra --gpus=1 --time=30
export HYDRA_FULL_ERROR=1
python train.py -m experiment=base 'model.layers=[1,2,3]' "optim.lr=choice(0.1,0.01)" ++trainer.max_epochs=5 \
  hydra.sweep.dir="multirun/\${now:%Y}" 'callbacks={early: {patience: 3}}'
