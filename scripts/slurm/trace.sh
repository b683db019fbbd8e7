#!/bin/sh
#SBATCH --job-name=mmprobe
#SBATCH --array=1-4
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=24:00:00
#SBATCH --requeue
# Trace samples on as many GPUs as the array has tasks, into one run:
#   sbatch scripts/slurm/trace.sh qwen2.5-vl-7b samples.jsonl runs/7b --max-new-tokens 64
# Further options are those of mmprobe trace. A task that was stopped continues where it was. The last one that
# finishes merges the whole run.
set -eu
model=$1 data=$2 out=$3
shift 3
exec ${MMPROBE:-mmprobe} trace --model "$model" --data "$data" --out "$out" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --resume "$@"
