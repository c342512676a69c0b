"""What Snakemake thinks of every job, also of those below a job that it wants to repeat; quicker questions.

Private interfaces of Snakemake, for tests only; those that the package needs are in
`attnprior.workflow.engines`.
"""

import contextlib
import functools
import operator
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from attnprior.workflow import params, studyfiles, sync
from attnprior.workflow.engines import LARGEST_CHECKSUM, Graph, Job

STAGE_FILES = (sync.ARMS, sync.DVC, "dvc.lock")


def planned(graph: Graph) -> set[str]:
    """Return the keys of the jobs that Snakemake would run."""
    return {j.key for j in graph.jobs if graph._workflow.dag.needrun(j.handle)}


def own_causes(graph: Graph) -> dict[str, set[str]]:
    """Return {job: why Snakemake would run it if nothing before it were run}, without jobs that it would not.

    Snakemake stops looking below a job that it wants to repeat, so the questions that it asks of a job
    are asked here of every job of its plan: are outputs missing; are settings, code, the set of inputs
    or the content of a newer input other than it has recorded?
    """
    plan = planned(graph)
    found = {
        j.key: _causes(graph, j) or ({"other"} if j.own_cause else set()) for j in graph.jobs if j.key in plan
    }
    return {key: causes for key, causes in found.items() if causes}


def _causes(graph: Graph, job: Job) -> set[str]:
    persistence, handle = graph._workflow.persistence, job.handle
    if not all(map(os.path.exists, job.outputs)):
        return {"missing"}
    if not persistence.has_metadata(handle):
        return {"unknown"}
    made = min(os.stat(f).st_mtime for f in job.outputs)
    newer = [f for f in handle.input if not os.path.exists(f) or os.stat(f).st_mtime > made]
    asked = {
        "settings": bool(persistence.params_changed(handle)),
        "inputs": any(persistence.input_changed(handle)),
        "code": any(persistence.code_changed(handle)),
        "content": any(_other_content(graph, handle, f) for f in newer),
    }
    return {cause for cause, found in asked.items() if found}


def _other_content(graph: Graph, handle, path) -> bool:
    recorded = graph._workflow.persistence.input_checksums(handle, path)
    if recorded == {None}:
        return False  # no input before: another set of inputs
    return len(recorded) != 1 or not graph._run(path.is_same_checksum(recorded.pop(), LARGEST_CHECKSUM))


@contextlib.contextmanager
def quicker_dvc() -> Iterator[None]:
    """Let DVC do each thing once: parse a text, find a key in it, hash a file or folder, load its stages.

    It does all four anew for every question, and the first three for every stage that names the file or key.
    Nothing else is judged: keys are found as it finds them (without wildcards, which ours do not have), its
    own records of hashes, too, are by path, size, time stamp and inode, and stages hold what stands in its
    files, not what it finds in the workspace. Built folders it keeps in memory, and looks for each in all.
    """
    import dpath
    from dvc.output import Output
    from dvc.repo import Repo
    from dvc.utils import strictyaml
    from dvc.utils.serialize import _yaml

    parse, hash_of, reset = _yaml.parse_yaml, Output._get_hash_meta, Repo._reset
    hashes: dict[tuple, tuple] = {}
    indices: dict[tuple[str, ...], object] = {}

    @functools.lru_cache(maxsize=32)
    def parsed(text: str, path: str, typ: str) -> bytes:
        return pickle.dumps(parse(text, path, typ))

    def parse_yaml(text: str, path: str, typ: str = "safe"):
        return pickle.loads(parsed(text, path, typ))

    def found(values: dict, key: str, separator: str):
        return functools.reduce(operator.getitem, key.split(separator), values)

    def hash_meta(output):
        if not os.path.exists(output.fs_path):
            return hash_of(output)
        key = (output.fs_path, output.use_cache, *_files(output.fs_path))
        if key not in hashes:
            hashes[key] = hash_of(output)
        return hashes[key]

    def reset_all_but_stages(repo):
        reset(repo)
        texts = tuple(Path(repo.root_dir, name).read_text(encoding="utf-8") for name in STAGE_FILES)
        if texts not in indices:
            if len(indices) > 1:
                indices.popitem()  # not the first, to which all changes are put back
            indices[texts] = repo.index
        repo.__dict__["index"] = indices[texts]

    with (
        mock.patch.object(_yaml, "parse_yaml", parse_yaml),
        mock.patch.object(strictyaml, "parse_yaml", parse_yaml),
        mock.patch.object(dpath, "get", found),
        mock.patch.object(Output, "_get_hash_meta", hash_meta),
        mock.patch.object(Repo, "_reset", reset_all_but_stages),
    ):
        yield


@contextlib.contextmanager
def settings_read_once() -> Iterator[None]:
    """Let the same texts of `params.yaml`, its schema and studies be read and checked once."""
    load = params.load

    @functools.lru_cache(maxsize=2)
    def read(texts: tuple[str, ...]) -> bytes:
        return pickle.dumps(load())

    def loaded(root=".", studies=(), *, every: bool = False) -> dict:
        if (root, studies, every) != (".", (), False):
            return load(root, studies, every=every)
        names = (params.PARAMS, params.SCHEMA, *studyfiles.names(root))
        return pickle.loads(read((*names, *(Path(name).read_text(encoding="utf-8") for name in names))))

    with mock.patch.object(params, "load", loaded):
        yield


def _files(path: str) -> list[tuple]:
    """Return path, size, time stamp and inode of a file, or of all files of a folder."""
    names = sorted(str(p) for p in Path(path).rglob("*")) if os.path.isdir(path) else [path]
    stats = [os.stat(name) for name in names]
    return [(n, s.st_size, s.st_mtime_ns, s.st_ino) for n, s in zip(names, stats, strict=True)]
