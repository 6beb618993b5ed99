#!/bin/bash
# A job array on SLURM: eight shards, a GPU each, then the merge. Start it with
#
#     bash examples/slurm_array.sh in.parquet out.parquet --model qwen2.5-7b-instruct
#
# Both paths, and the folder out.parquet.journal beside the output, must be seen by all nodes. A task that is preempted
# is put back by SLURM and goes on where it was. One that nears its time limit is told to end and commits its rows; start
# this script again, and every task goes on. SHARDS=32 bash ... makes more and shorter tasks; keep to one number.
set -euo pipefail

shards=${SHARDS:-8}
input=$1 output=$2
shift 2

printf -v run '%q ' batchfact run "$input" "$output" "$@"
array=$(sbatch --parsable --job-name=batchfact --array="1-$shards" --gpus=1 --cpus-per-task=8 --mem=64G \
    --time=12:00:00 --requeue --open-mode=append --signal=B:TERM@300 --output=batchfact-%A-%a.log \
    --wrap "exec $run --shard \$SLURM_ARRAY_TASK_ID/$shards")

printf -v merge '%q ' batchfact merge "$output.journal" "$input" "$output"
sbatch --job-name=batchfact-merge --dependency="afterok:$array" --cpus-per-task=2 --mem=16G --time=04:00:00 \
    --output=batchfact-merge-%j.log --wrap "exec $merge"
