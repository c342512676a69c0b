#!/bin/sh
# node.sh URL JOB: do a job on this node. ATTNPRIOR_REMOTE_START calls it, in the node's own checkout.
# Edit: what the environment of a node needs (modules, credentials of the bucket).
set -eu
[ -d src/attnprior ] || cd "$(dirname "$0")/../../.." # a batch system that copies the script starts it in the checkout
[ ! -d .venv ] || PATH="$PWD/.venv/bin:$PATH"
export PYTHONPATH="$PWD/src"
exec python -m attnprior.workflow.node "$@"
