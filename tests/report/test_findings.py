import pytest

from attnprior.report.findings import answer, findings, is_shown


def comparison(arm, reference="random", difference=0.1, low=0.05, high=0.15, p=0.001, **changes):
    row = {"metric": "top1", "arm": arm, "reference": reference, "difference": difference, "low": low}
    row |= {"high": high, "bootstrap_low": low, "bootstrap_high": high, "p": p, "p_holm": p}
    return {**row, **changes}


def arm(name, mean, role="arm", seeds=5):
    return {"arm": name, "role": role, "seeds": seeds, "top1_mean": mean}


ARMS = [arm("random", 0.7), arm("impulse", 0.8), arm("copy", 0.82)]


def test_a_shown_difference_is_told_with_its_interval():
    pairs = [comparison("impulse"), comparison("copy", difference=0.12, low=0.01, high=0.23)]
    pairs += [comparison("impulse", "copy", -0.02, -0.1, 0.06, p=0.6)]
    assert findings(ARMS, pairs, "random", 0.95) == [
        "Highest mean test accuracy: copy, 82.0 %."
        " Its lead over impulse, the next (+2.0 points), is not shown.",
        "copy beats random by 12.0 points (95 % interval 1.0 to 23.0).",
        "impulse beats random by 10.0 points (95 % interval 5.0 to 15.0).",
    ]


def test_a_shown_lead_is_told_the_right_way_round():
    pairs = [comparison("impulse"), comparison("copy")]
    pairs += [comparison("impulse", "copy", -0.02, -0.03, -0.01)]
    assert findings(ARMS, pairs, "random", 0.95)[0] == (
        "Highest mean test accuracy: copy, 82.0 %. It beats impulse, the next, by 2.0 points"
        " (95 % interval 1.0 to 3.0)."
    )


def test_a_worse_arm_falls_behind():
    rows = [arm("random", 0.7), arm("other", 0.3, "control")]
    pairs = [comparison("other", difference=-0.4, low=-0.5, high=-0.3)]
    assert findings(rows, pairs, "random", 0.95) == [
        "Control other falls behind random by 40.0 points (95 % interval 30.0 to 50.0)."
    ]


def test_controls_are_told_after_the_arms_and_as_controls():
    rows = [arm("random", 0.7), arm("impulse", 0.7), *(arm(f"c{i}", 0.9, "control") for i in range(3))]
    pairs = [comparison("c0"), comparison("c1", low=-0.1), comparison("c2", p=0.5)]
    pairs += [comparison("impulse", low=-0.1)]
    assert findings(rows, pairs, "random", 0.95)[-3:] == [
        "No difference to random is shown for: impulse.",
        "Control c0 beats random by 10.0 points (95 % interval 5.0 to 15.0).",
        "No difference to random is shown for: the controls c1, c2.",
    ]


@pytest.mark.parametrize(
    ("limits", "ending"),
    [
        (
            (0.09, 0.12),
            "(95 % interval 9.0 to 12.0); chance, one of 10 classes, is 10.0 %,"
            " inside the interval, as it should be.",
        ),
        (
            (0.11, 0.12),
            "10.0 %, outside the interval: the accuracy is above chance, which asks for an explanation.",
        ),
        ((0.05, 0.07), "the accuracy is below chance, which asks for an explanation."),
        ((None, None), "(no interval, all seeds are equal); chance, one of 10 classes, is 10.0 %."),
    ],
)
def test_permuted_labels_are_held_against_chance(limits, ending):
    control = arm("shuffled", 0.105, "control") | dict(zip(("top1_low", "top1_high"), limits, strict=True))
    pairs = [comparison("shuffled", difference=-0.6, low=-0.7, high=-0.5)]
    said = findings([arm("random", 0.7), control], pairs, "random", 0.95, ["shuffled"], 10)[-1]
    assert said.startswith("shuffled was trained on permuted labels: 10.5 % test accuracy (")
    assert said.endswith(ending)


def test_one_seed_on_permuted_labels_has_chance_but_no_interval():
    control = arm("shuffled", 0.105, "control", 1) | {"top1_low": None, "top1_high": None}
    rows = [arm("random", 0.7, seeds=1), control]
    _, said = findings(rows, [comparison("shuffled")], "random", 0.95, ["shuffled"], 4)
    assert said.endswith("(one seed: no interval, no test); chance, one of 4 classes, is 25.0 %.")


@pytest.mark.parametrize(
    "changes",
    [
        {"low": -0.01},
        {"bootstrap_low": -0.01},
        {"p_holm": 0.06},
        {"p_holm": None},
        {"low": None, "high": None},
        {"bootstrap_low": None, "bootstrap_high": None},
    ],
)
def test_what_any_measure_leaves_open_is_not_shown(changes):
    assert is_shown(comparison("impulse"), 0.95)
    row = comparison("impulse", **changes)
    assert not is_shown(row, 0.95)
    told = findings(ARMS[:2], [row], "random", 0.95)
    assert told[-1] == "No difference to random is shown for: impulse."
    assert not any("beats" in t for t in told)


def test_one_seed_shows_nothing():
    rows = [arm("random", 0.7, seeds=1), arm("impulse", 0.8, seeds=1)]
    (told,) = findings(rows, [comparison("impulse")], "random", 0.95)
    assert told == "Highest test accuracy: impulse, 80.0 %. One seed: no interval, no test."


def test_a_single_arm_compares_nothing():
    assert findings([arm("random", 0.7)], [], "random", 0.95) == [
        "random is the only arm: nothing is compared."
    ]


def test_the_answer_is_one_sentence_on_the_best_arm():
    pairs = [comparison("impulse"), comparison("copy", difference=0.12, low=0.01, high=0.23)]
    pairs += [comparison("impulse", "copy", -0.02, -0.1, 0.06, p=0.6)]
    assert answer(ARMS, pairs, "random", 0.95) == (
        "copy has the highest mean test accuracy, 82.0 %: 12.0 points (95 % interval 1.0 to 23.0) above the"
        " baseline random; its lead over impulse, the next (+2.0 points) is not shown."
    )


def test_the_answer_counts_a_runner_up_that_is_the_baseline_once():
    assert answer(ARMS[:2], [comparison("impulse", p=0.5)], "random", 0.95) == (
        "impulse has the highest mean test accuracy, 80.0 %: its lead over the baseline random (+10.0 points)"
        " is not shown."
    )
    pairs = [comparison("impulse", difference=-0.1, low=-0.15, high=-0.05)]
    assert answer([arm("random", 0.9), ARMS[1]], pairs, "random", 0.95) == (
        "random has the highest mean test accuracy, 90.0 %: 10.0 points (95 % interval 5.0 to 15.0) above"
        " impulse, the next."
    )


def test_one_arm_or_one_seed_is_no_answer():
    alone = [ARMS[0], arm("other", 0.9, "control")]
    assert (
        answer(alone, [comparison("other")], "random", 0.95)
        == "random is the only arm, at 70.0 % test accuracy."
    )
    rows = [arm("random", 0.7, seeds=1), arm("impulse", 0.8, seeds=1)]
    assert answer(rows, [comparison("impulse", low=None, high=None)], "random", 0.95) == (
        "impulse has the highest test accuracy, 80.0 %, but one seed shows no difference."
    )
