import csv

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnprior.train.history import write_history


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_read_back_exactly(tmp_path, losses):
    path = tmp_path / "history.csv"
    rows = [{"epoch": i + 1, "loss": loss} for i, loss in enumerate(losses)]
    write_history(path, ["epoch", "loss"], rows)
    with open(path, newline="") as f:
        found = [{"epoch": int(r["epoch"]), "loss": float(r["loss"])} for r in csv.DictReader(f)]
    assert found == rows


def test_without_rows_there_is_a_header(tmp_path):
    write_history(tmp_path / "history.csv", ["epoch", "step", "loss"], [])
    assert (tmp_path / "history.csv").read_bytes() == b"epoch,step,loss\n"
