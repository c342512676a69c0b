"""A real checkout with few epochs: the shipped Snakefile, dvc.yaml and stages, in a folder of its own."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (
    "Snakefile",
    "workflow",
    "profiles",
    "src",
    "params.yaml",
    "dvc.yaml",
    ".dvcignore",
    ".gitignore",
    "pyproject.toml",
)


def small(params: dict) -> dict:
    """Return the shipped settings with 3 students, 2 seeds and few epochs."""
    params["recipes"] = {name: params["recipes"][name] for name in ("mae", "student")}
    for recipe in params["recipes"].values():
        recipe.update(epochs=2, warmup_epochs=0)
        del recipe["warmup_lr"]
    params["fits"]["impulse3"].update(steps=200)
    study = params["studies"]["digits"]
    study["seeds"] = [0, 1]
    study["panels"] = {
        "model_i": {
            "title": "Model I",
            "baseline": "random",
            "arms": ["random", "impulse", "copy"],
            "controls": [],
        }
    }
    return params


def every_kind(params: dict) -> dict:
    """Return the shipped settings with a seed, few epochs, an override and an inactive entry of each kind."""
    panels = params["studies"]["digits"]["panels"]
    params = small(params)
    params["studies"]["digits"].update(panels=panels, seeds=[0])
    params["students"]["distil"]["overrides"] = {"lr": 0.001}
    params["active"] = ["digits"]
    params["models"]["spare"] = {**params["models"]["model_i"]}
    params["recipes"]["spare"] = {**params["recipes"]["student"]}
    params["teachers"]["spare"] = {**params["teachers"]["random_model_i"], "model": "spare"}
    kept = {**params["fits"]["impulse3"], "model": "spare", "offsets": "ordered", "solver": "svd"}
    svd = {"signal": 1.0, "noise": 0.1, "norm": 1.0, "value_norm": 0.0}
    adam = ("steps", "lr", "norm_every")
    params["fits"]["spare"] = {k: v for k, v in kept.items() if k not in adam} | svd
    params["students"]["spare"] = {
        **params["students"]["impulse"],
        "model": "spare",
        "init": {"source": "impulse", "fit": "spare"},
        "recipe": "spare",
        "overrides": {"augment": {"padding": 2}},
    }
    params["datasets"]["spare"] = {**params["datasets"]["digits"], "split_seed": 1}
    arms = {"baseline": "random", "arms": ["random", "spare"], "controls": []}
    params["studies"]["spare"] = {
        **params["studies"]["digits"],
        "panels": {"model_i": {"title": "Spare", **arms}},
    }
    return params


class Project:
    """A checkout in `root`, driven through the command line only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.traces = root.with_name(f"{root.name}-traces")  # see readers.py

    def sh(
        self, *command: str, ok: bool = True, timeout: float = 1200, **env: str
    ) -> subprocess.CompletedProcess:
        done = subprocess.run(
            command,
            cwd=self.root,
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if ok:
            assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def attnprior(self, *args: str, ok: bool = True, **env: str) -> subprocess.CompletedProcess:
        return self.sh(sys.executable, "-m", "attnprior", *args, ok=ok, **env)

    def snakemake(self, *args: str, ok: bool = True) -> subprocess.CompletedProcess:
        return self.sh(sys.executable, "-m", "snakemake", *args, ok=ok)

    def dvc(self, *args: str, ok: bool = True) -> subprocess.CompletedProcess:
        return self.sh(sys.executable, "-m", "dvc", *args, ok=ok)

    def git(self, *args: str) -> str:
        return self.sh("git", "-c", "user.name=t", "-c", "user.email=t@example.org", *args).stdout

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD").strip()

    def params(self) -> dict:
        return yaml.safe_load((self.root / "params.yaml").read_text())

    def put(self, key: str, value) -> None:
        """Set a dotted key of params.yaml."""
        params = self.params()
        *parents, last = key.split(".")
        node = params
        for part in parents:
            node = node[part]
        node[last] = value
        (self.root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))

    def planned(self) -> set[str]:
        """Return the jobs that `attnprior run` would run."""
        lines = self.attnprior("run", "-n").stdout.splitlines()
        jobs = {line.split(":")[0] for line in lines[:-1]}
        assert lines[-1].startswith(f"{len(jobs)} of "), lines[-1]
        return jobs

    def snakemake_planned(self) -> set[str]:
        """Return the jobs that a bare `snakemake` would run."""
        shown = self.snakemake("-n", "--printshellcmds").stdout
        jobs = set()
        for rule, arguments in re.findall(r"-m attnprior\.stages\.(\w+) (.*)", shown):
            names = [
                m[1]
                for m in re.finditer(r"--(?:dataset|teacher|fit|student|study) ([a-z]\w*)(?= |$)", arguments)
            ]
            seed = re.search(r"--seed (\d+)", arguments)
            jobs.add("/".join([rule, *names, *([f"seed{seed[1]}"] if seed else [])]))
        return jobs

    def dvc_changed(self) -> set[str]:
        """Return the stages that DVC calls changed."""
        return set(json.loads(self.dvc("status", "--json").stdout or "{}"))

    def record(self, path: str) -> dict:
        return json.loads((self.root / path).read_text())

    def contents(self) -> dict[str, bytes]:
        """Return the content of every result file, but what is true of the machine only."""
        files = [
            p for d in ("data", "teachers", "fits", "runs", "results") for p in (self.root / d).rglob("*")
        ]
        return {
            str(p.relative_to(self.root)): p.read_bytes()
            for p in files
            if p.is_file() and not p.name.endswith("run.json") and p.name not in ("report.html", ".gitignore")
        }

    def copy(self, root: Path) -> "Project":
        """Return a copy with the same time stamps: the same checkout, as it was."""
        shutil.copytree(self.root, root, symlinks=True)
        return Project(root)


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a user: this interpreter's programs first, no path to the sources."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ATTNPRIOR_", "MLFLOW_", "GIT_", "DVC_"))}
    env.pop("PYTHONPATH", None)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    return {**env, "DVC_NO_ANALYTICS": "1", "ATTNPRIOR_TRACKING": "off", **extra}


def create(root: Path, settings=small, beside=None) -> Project:
    """Return a new project in `root`: git, DVC, nothing made; `settings` changes the shipped ones.

    `beside` gives {path: content} of further files of settings.
    """
    root.mkdir(parents=True)
    for name in SHIPPED:
        source = ROOT / name
        if source.is_symlink():
            (root / name).symlink_to(os.readlink(source))
        elif source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, root / name)
    project = Project(root)
    params = settings(yaml.safe_load((ROOT / "params.yaml").read_text()))
    for name, content in (beside(params) if beside else {}).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(yaml.safe_dump(content, sort_keys=False))
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    project.git("init", "-q", "-b", "main")
    project.dvc("init", "-q")
    project.attnprior("sync")
    project.commit("Set up")
    return project
