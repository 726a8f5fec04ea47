#!/bin/bash
#SBATCH --ntasks=4 --gpus-per-task=1 --cpus-per-task=8 --time=1:00:00
set -o pipefail
cd project
source venv/bin/activate
set -a
source .env
set +a
export $(grep -v '^#' extra.env | xargs)
for ((i = 0; i < 3; i++)); do
  echo $i
done
srun -n 1 python server.py &
srun -n 4 python client.py &
wait
srun -n 1 python report.py
if [ $? -ne 0 ]; then
  sbatch $0
fi
