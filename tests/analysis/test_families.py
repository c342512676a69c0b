from hypothesis import given
from hypothesis import strategies as st

from attnprior.analysis.families import Family, families, study_families
from attnprior.config import build_study
from tests.stages import fake_runs


def student(labels, **changes):
    return {"model": "m", "init": {"source": "random"}, "labels": labels, **changes}


def test_arms_that_differ_in_labels_alone_are_a_family_named_by_what_their_names_share():
    made = {
        "random_50": student(50),
        "copy_1400": student(1400, init={"source": "teacher", "teacher": "t"}),
        "random": student(200),
        "random_100": student(100),
        "copy_100": student(100, init={"teacher": "t", "source": "teacher"}),
        "permuted": student(100, permute_labels=True),
    }
    assert families(made) == [
        Family("random", {50: "random_50", 100: "random_100", 200: "random"}),
        Family("copy", {100: "copy_100", 1400: "copy_1400"}),
    ]
    assert [f.name for f in families(made, ["copy_100"])] == ["copy", "random"]


def test_two_families_never_share_a_name_and_nothing_in_common_is_the_first_name():
    made = {"vit_a": student(10, x=1), "vit_b": student(20, x=1)}
    made |= {"vit_c": student(10, x=2), "vit_d": student(20, x=2)}
    made |= {"few": student(10), "many": student(20)}
    assert [f.name for f in families(made)] == ["vit_a", "vit_c", "few"]


def test_equal_arms_count_once_and_one_number_of_labels_is_no_family():
    assert families({"a": student(10), "b": student(10)}) == []
    assert families({"a_1": student(10), "b": student(10), "a_2": student(20)}) == [
        Family("a", {10: "a_1", 20: "a_2"})
    ]


def test_controls_join_no_family_and_that_of_the_baseline_is_first():
    made = fake_runs.labels_study()
    made["panels"]["labels_50"]["controls"] = ["permuted_50"]
    for panel in made["panels"].values():
        panel["arms"].reverse()
    settings = {s: fake_runs.settings(s) for s in fake_runs.students(made)}
    found = study_families(build_study(made, "studies.x"), settings)
    assert [f.name for f in found] == ["random", "vit_copy", "copy"]
    assert found[0].arms == {50: "random_50", 200: "random", 1400: "random_1400"}


@given(st.dictionaries(st.from_regex(r"[a-c](_[0-9]{1,2})?", fullmatch=True), st.integers(1, 5)))
def test_every_family_has_several_budgets_in_order_and_an_arm_is_in_one_at_most(budgets):
    found = families({name: student(n, kind=name[0]) for name, n in budgets.items()})
    arms = [a for f in found for a in f.arms.values()]
    assert len(arms) == len(set(arms)) and all(len(f.arms) > 1 for f in found)
    for family in found:
        assert list(family.arms) == sorted(family.arms)
        assert all(budgets[a] == n and a[0] == family.name for n, a in family.arms.items())
