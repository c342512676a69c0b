#!/bin/sh
# Install what `make test-slurm` needs beside the test tools: Snakemake's plugin, and Slurm's programs and munge from
# the system (Debian, Ubuntu: as root). Starts nothing: the tests start daemons of their own, on the loopback, and
# stop them. Services that the system's packages would start are held back.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
constraints=$("$python" -c 'import sys; print("constraints/py%d%d.txt" % sys.version_info[:2])')

"$python" -m pip --disable-pip-version-check install -q -c "$constraints" -e '.[test,slurm]'
for program in slurmctld slurmd munged sbatch; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing=yes
done
[ -n "${missing:-}" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "slurm: no Slurm here; install slurmctld, slurmd, slurm-client and munge, or its tests are skipped" >&2
    exit 0
fi
policy=/usr/sbin/policy-rc.d # Debian's way to keep a package from starting its services
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge
