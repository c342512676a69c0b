import resource
from types import SimpleNamespace

from attnprior.workflow.benchmarks import benchmark_text


def test_the_columns_are_those_of_snakemake_and_the_numbers_those_of_the_system():
    from snakemake.benchmark import BenchmarkRecord

    usage = SimpleNamespace(ru_utime=3.0, ru_stime=1.0, ru_maxrss=512 * 1024)
    head, row = (line.split("\t") for line in benchmark_text(3725.5, usage).splitlines())
    assert head == BenchmarkRecord.get_header()
    found = dict(zip(head, row, strict=True))
    assert (found["s"], found["h:m:s"], found["cpu_time"]) == ("3725.5000", "1:02:05", "4.00")
    assert float(found["mean_load"]) == round(100 * 4 / 3725.5, 2)
    benchmark_text(0.0, resource.getrusage(resource.RUSAGE_SELF))
