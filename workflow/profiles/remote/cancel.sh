#!/bin/sh
# cancel.sh JOB...: ask the nodes to stop the jobs. Snakemake waits two seconds for it, a slow network takes longer.
nohup python -m attnprior.workflow.remote cancel "$@" </dev/null >/dev/null 2>&1 &
