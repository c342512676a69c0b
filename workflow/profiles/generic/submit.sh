#!/bin/sh
# submit.sh RULE THREADS MEM_MB MINUTES GPUS JOBSCRIPT: submit the job script, print the number of the job alone.
# Edit: the parallel environment `smp` and the names of the resources are a site's own.
set -eu
rule=$1 threads=$2 memory=$3 minutes=$4 gpus=$5 script=$6
mkdir -p logs/cluster
set -- -terse -V -cwd -j y -o logs/cluster -N "attnprior-$rule" \
    -pe smp "$threads" -l "h_vmem=$((memory / threads))M,h_rt=$((minutes * 60))"
[ "$gpus" = 0 ] || set -- "$@" -l "gpu=$gpus"
qsub "$@" "$script"
