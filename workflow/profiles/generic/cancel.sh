#!/bin/sh
# cancel.sh JOB...: cancel the jobs. Edit for your system.
exec qdel "$@"
