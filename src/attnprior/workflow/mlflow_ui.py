"""`attnprior ui`: MLflow's pages on this machine."""

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from attnprior.errors import UserError
from attnprior.workflow.mlflow_open import QUIET, tracking_uri
from attnprior.workflow.tracking import track

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def ui(root: Path | str = ".", host: str = "127.0.0.1", port: int = 5000) -> int:
    """Serve MLflow's pages of the store on this machine only; replaces this process.

    Raises:
        UserError: `host` can be reached from outside.
    """
    if host not in LOOPBACK:
        raise UserError(f"host {host}: MLflow's pages have no log-in; allowed: {', '.join(LOOPBACK)}")
    root, uri = Path(root).resolve(), tracking_uri(root)
    if urlsplit(uri).scheme in ("http", "https"):
        print(f"MLFLOW_TRACKING_URI names a server: open {uri}")
        return 0
    if track(root).warning:
        return 1
    print(f"MLflow's pages: http://{host}:{port} (stop with Ctrl-C)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--workers", "1"]
    command += [
        "--default-artifact-root",
        (root / "mlartifacts").as_uri(),
        "--host",
        host,
        "--port",
        str(port),
    ]
    env = {**os.environ, **QUIET, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    os.execve(sys.executable, command, env)
