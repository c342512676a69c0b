"""A Slurm of the tests' own: munge, controller and nodes with two pretended GPUs, on the loopback only.

Everything lies in one folder and is found through SLURM_CONF, so a Slurm of this machine is not touched.
"""

import contextlib
import getpass
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
CONTROLLER = ("slurmctld", "-D", "-i")
GPUS = 2
NULL = os.makedev(1, 3)  # what a pretended GPU is

CONFIG = """\
ClusterName=attnprior
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
EnforcePartLimits=NO
SchedulerParameters=batch_sched_delay=1,sched_interval=5
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=60
KillWait=5
MinJobAge=3600
Epilog={folder}/epilog
MaxArraySize=100
GresTypes=gpu
SlurmdParameters=config_overrides
PartitionName=main Nodes=ALL Default=YES MaxTime=04:00:00 State=UP
PartitionName=short Nodes=ALL MaxTime=00:10:00 State=UP
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=16000"
    " Gres=gpu:fake:2 State=UNKNOWN\n"
)
# What the command of a job sees: number (that of an array with its index) and GPUs.
SEEN = """\
if [ -n "${{SLURM_JOB_ID:-}}" ]; then
    number="${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}"
    echo "$number ${{CUDA_VISIBLE_DEVICES:-none}}" >>{folder}/seen
fi
"""
# Runs when a job is over, before Slurm says so: takes the file that `late` names out of sight.
EPILOG = """\
#!/bin/sh
[ -e {folder}/late ] || exit 0
path=$(cat {folder}/late)
[ ! -e "$path" ] || mv "$path" "$path.late"
"""


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [p for p in PROGRAMS if shutil.which(p, path=SEARCH) is None]


class Slurm:
    """The daemons, which this process starts as its children and stops by their numbers."""

    def __init__(self, folder: Path, cpus: int = 2, nodes: int = 1) -> None:
        # Snakemake's plugin keeps SLURM_CONF from the `srun` inside a job, so that is told by a script.
        self.folder = folder
        self.environment = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", "")]),
            "BASH_ENV": str(folder / "seen.sh"),  # read by the shell of each job's command
        }
        for name in ("state", "spool", "bin"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        for i in range(GPUS):
            os.mknod(folder / f"gpu{i}", 0o600 | stat.S_IFCHR, NULL)
        (folder / "seen.sh").write_text(SEEN.format(folder=folder))
        (folder / "epilog").write_text(EPILOG.format(folder=folder))
        (folder / "epilog").chmod(0o755)
        host = socket.gethostname().partition(".")[0]
        self.host = host
        self.nodes = [host, *(f"{host}-{i}" for i in range(1, nodes))]
        ports = _free_ports(1 + nodes)
        config = CONFIG.format(host=host, ports=ports, folder=folder, user=getpass.getuser())
        for name, port in zip(self.nodes, ports[1:], strict=True):
            config += NODE.format(name=name, host=host, port=port, cpus=cpus)
        (folder / "slurm.conf").write_text(config)
        gres = f"NodeName={','.join(self.nodes)} Name=gpu Type=fake File={folder}/gpu[0-{GPUS - 1}]\n"
        (folder / "gres.conf").write_text(gres)
        srun = folder / "bin/srun"
        real = shutil.which("srun", path=SEARCH)
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {real} "$@"\n')
        srun.chmod(0o755)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._children: dict[str, subprocess.Popen] = {}

    def start(self) -> None:
        """Start all daemons and wait until the node takes jobs."""
        here = self.folder
        self._start(
            "munged",
            "--foreground",
            "--force",
            f"--socket={here}/munge.socket",
            f"--key-file={here}/munge.key",
            f"--pid-file={here}/munged.pid",
            f"--log-file={here}/munged.log",
            f"--seed-file={here}/munged.seed",
        )
        _until(lambda: (here / "munge.socket").exists(), "munged")
        self.start_controller()
        for name in self.nodes:
            self._start("slurmd", "-D", "-N", name)
        _until(lambda: self.ask("sinfo", "-h", "-o", "%t", ok=False).split() == ["idle"], "the nodes")

    def start_controller(self) -> None:
        self._start(*CONTROLLER)
        _until(lambda: " UP" in self.ask("scontrol", "ping", ok=False), "slurmctld")

    def stop_controller(self) -> None:
        """Kill the controller as a crash would."""
        self._stop(" ".join(CONTROLLER), hard=True)

    def stop(self) -> None:
        """Cancel what runs, then end the daemons."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            self.ask("scancel", f"--user={getpass.getuser()}")
            _until(lambda: not self.jobs(), "the jobs to end", seconds=20)
        for name in reversed(list(self._children)):
            self._stop(name)

    def ask(self, *command: str, ok: bool = True) -> str:
        """Return what a command of Slurm prints."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if ok:
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def jobs(self, states: str = "PENDING,RUNNING,COMPLETING") -> dict[str, str]:
        """Return {Slurm's job number: comment, which names the rule and its wildcards}."""
        lines = self.ask("squeue", "-h", "-r", "-t", states, "-o", "%i|%k").splitlines()
        return dict(line.split("|", 1) for line in lines)

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job."""
        words = self.ask("scontrol", "-o", "show", "job", number).split()
        return dict(w.split("=", 1) for w in words if "=" in w)

    def saved(self, number: str) -> bool:
        """Return whether the controller has written down that a job runs; it does so every few seconds."""
        return (self.folder / "state/job_state").stat().st_mtime >= self.began(number) + 1

    def began(self, number: str) -> float:
        """Return the second at which a job began."""
        return time.mktime(time.strptime(self.job(number)["StartTime"], "%Y-%m-%dT%H:%M:%S"))

    def gpus_seen(self) -> dict[str, str]:
        """Return {Slurm's job number: CUDA_VISIBLE_DEVICES of its command}."""
        path = self.folder / "seen"
        return dict(line.split() for line in path.read_text().splitlines()) if path.exists() else {}

    def log(self) -> str:
        """Return the ends of the daemons' logs, for a test that fails."""
        return "\n".join(
            f"== {name}\n" + "\n".join((self.folder / name).read_text(errors="replace").splitlines()[-20:])
            for name in sorted(p.name for p in self.folder.glob("slurm*.log"))
        )

    def _start(self, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=SEARCH)
        with open(self.folder / f"{name}.out", "ab") as out:
            # Should this process be killed, its daemons go with it.
            self._children[" ".join([name, *arguments])] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", str(program), *arguments],
                env={**os.environ, **self.environment},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _stop(self, name: str, *, hard: bool = False) -> None:
        child = self._children.pop(name, None)
        if child is None:
            return
        (child.kill if hard else child.terminate)()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextlib.contextmanager
def running(cpus: int, nodes: int = 1) -> Iterator[Slurm]:
    """Yield a Slurm that runs. Its folder has a short path, for that of a socket has a limit."""
    with tempfile.TemporaryDirectory(prefix="attnprior-slurm-") as folder:
        slurm = Slurm(Path(folder), cpus, nodes)
        try:
            slurm.start()
            yield slurm
        finally:
            slurm.stop()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


def _until(true, what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.2)
