import platform
import time

import attnprior
from attnprior import provenance
from tests.processes import output


def test_versions_name_torch_only_where_it_is_imported():
    code = "from attnprior import provenance; print(*provenance.versions())"
    assert output(code).split() == ["python", "attnprior", "numpy", "safetensors"]
    import torch

    versions = provenance.versions()
    assert versions["torch"] == torch.__version__ and versions["attnprior"] == attnprior.__version__


def test_the_platform_is_that_of_the_system_and_torch_adds_its_own():
    import torch

    found = provenance.platform()
    assert (
        found["machine"] == platform.machine() and found["os"] == f"{platform.system()} {platform.release()}"
    )
    assert found["libc"].split() == list(platform.libc_ver())
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    code = "from attnprior import provenance; print(*provenance.platform())"
    assert output(code).split() == ["os", "machine", "libc"]


def test_process_age_is_the_time_since_the_process_started():
    code = "import time; time.sleep(0.5); from attnprior import provenance; print(provenance.process_age())"
    begin = time.monotonic()
    assert 0.5 <= float(output(code)) <= time.monotonic() - begin + 0.05


def test_commit_and_invocation_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("ATTNPRIOR_COMMIT", "abc")
    monkeypatch.setenv("ATTNPRIOR_INVOCATION", "")
    assert provenance.commit() == "abc" and provenance.invocation() is None


def test_the_cpu_is_named_and_memory_is_plausible():
    assert provenance.device_name().startswith("cpu (")
    assert 5 < provenance.max_rss_mb() < 100_000
