"""Benchmark files as Snakemake writes them, for jobs that it does not start itself."""

import sys
from resource import struct_rusage


def benchmark_text(seconds: float, usage: struct_rusage) -> str:
    """Return the file of a process that took `seconds`, with what the system tells of one that has ended."""
    cpu = usage.ru_utime + usage.ru_stime
    clock = f"{int(seconds // 3600)}:{int(seconds // 60) % 60:02}:{int(seconds) % 60:02}"
    rss = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)  # MB; from bytes there, else KiB
    columns = {"s": f"{seconds:.4f}", "h:m:s": clock, "max_rss": f"{rss:.2f}"}
    columns |= dict.fromkeys(("max_vms", "max_uss", "max_pss", "io_in", "io_out"), "NA")
    columns |= {"mean_load": f"{100 * cpu / max(seconds, 1e-3):.2f}", "cpu_time": f"{cpu:.2f}"}
    return "\t".join(columns) + "\n" + "\t".join(columns.values()) + "\n"
