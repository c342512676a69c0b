"""What `attnprior study show` says of the arms of a study."""

import re

from attnprior.workflow import params, show
from tests.workflow.project import ROOT


def test_arms_stand_in_columns_with_their_settings_as_written_and_what_is_frozen():
    settings = params.load(ROOT, ["impulse_t2_smoke", "cifar10_laptop_smoke"])
    lines = show.about(settings, "impulse_t2_smoke")
    arms = [line for line in lines if line.startswith("  arm ")]
    assert len({len(re.match(r"  arm +\S+ +", line)[0]) for line in arms}) == 1
    frozen = [line for line in arms if line.split()[1].endswith("_frozen__smoke")]
    assert frozen and all(line.endswith(", spatial frozen") for line in frozen)
    text = "\n".join(show.about(settings, "cifar10_laptop_smoke"))
    assert "map, {first: 4}, all" in text and "mimetic, false" in text
