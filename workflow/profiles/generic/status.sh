#!/bin/sh
# status.sh JOB: print one word: running (or waiting), success or failed. Edit for your system.
set -u
if qstat -j "$1" >/dev/null 2>&1; then
    echo running
elif qacct -j "$1" 2>/dev/null | awk '$1 == "failed" && $2 != 0 || $1 == "exit_status" && $2 != 0 {bad = 1}
                                       $1 == "exit_status" {known = 1} END {exit !known || bad}'; then
    echo success
elif qacct -j "$1" >/dev/null 2>&1; then
    echo failed
else
    echo running # it has left the queue and is not in the accounts yet
fi
