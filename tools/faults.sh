#!/bin/sh
# Install what `make test-faults` needs beside the test tools: DVC's SSH and S3 remotes, and servers for them.
# sshd and mkfs.xfs come from the system (Debian, Ubuntu: as root); tests that lack one are skipped and say so.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
constraints=$("$python" -c 'import sys; print("constraints/py%d%d.txt" % sys.version_info[:2])')

"$python" -m pip --disable-pip-version-check install -q -c "$constraints" -e '.[test,ssh,s3,servers]'
if ! PATH=$PATH:/usr/sbin command -v sshd >/dev/null || ! PATH=$PATH:/usr/sbin command -v mkfs.xfs >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server xfsprogs
    else
        echo "faults: no sshd or no mkfs.xfs; install openssh-server and xfsprogs, or tests of SSH and reflinks are skipped" >&2
    fi
fi
