#!/bin/sh
# Install what `make test-remote` needs beside the test tools: Snakemake's plugin, and rclone, which also serves S3 there.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
constraints=$("$python" -c 'import sys; print("constraints/py%d%d.txt" % sys.version_info[:2])')

"$python" -m pip --disable-pip-version-check install -q -c "$constraints" -e '.[test,remote]'
