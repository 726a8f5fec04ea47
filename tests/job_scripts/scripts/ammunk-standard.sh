#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=2 --gres=gpu:1 --mem=10G --time=00-01:00:00

source_dir=$PWD
project_name=$(basename $source_dir)
scratch_dir=${SCRATCH:-$PWD/scratch}/$project_name
export source_dir project_name
SLURM_TMPDIR=${SLURM_TMPDIR:-$PWD/tmpdir}
mkdir -p $SLURM_TMPDIR results
stringarray=("data/train.txt" "data/test.txt")
for i in "${stringarray[@]}"; do
  if [ -e "$i" ]; then tar -cf "$SLURM_TMPDIR/$(basename $i).tar" "$i"; else echo "no $i"; fi
done
(cd $SLURM_TMPDIR && for archive in *.tar; do tar -xf $archive; done)
cmd=$(grep -v '^#' experiment_configurations.txt | tr -d '\\\n')
echo "$cmd"
cd $SLURM_TMPDIR
eval $cmd
cp -r . ../results
