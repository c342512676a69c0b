#!/bin/sh
# Install what `make test-faults` needs beside the test tools: DVC's SSH and S3 remotes, and servers for them.
# sshd comes from the system (Debian, Ubuntu: as root); tests that lack a server are skipped and say so.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
constraints=$("$python" -c 'import sys; print("constraints/py%d%d.txt" % sys.version_info[:2])')

"$python" -m pip --disable-pip-version-check install -q -c "$constraints" -e '.[test,ssh,s3,servers]'
if ! PATH=$PATH:/usr/sbin command -v sshd >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server
    else
        echo "faults: no sshd; install openssh-server, or tests of SSH are skipped" >&2
    fi
fi
