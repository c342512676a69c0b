"""Reduced studies are consistent projects, whether they are run or not."""

import pytest

from attnprior.workflow import graph, params, studyfiles
from tests.studies import projects
from tests.studies.reduced import CLASSES, STEPS, combination, reduce
from tests.workflow import mutations
from tests.workflow.project import ROOT

FILES = [p for p in studyfiles.names(ROOT) if "studies" in (studyfiles.read_yaml(ROOT / p) or {})]


@pytest.fixture(scope="module")
def settings():
    return mutations.read(ROOT)


@pytest.fixture(scope="module", params=FILES)
def small(request, settings, tmp_path_factory):
    """Settings of all files, the name of one, its studies in small, and these as a project reads them."""
    made, tmp_path = reduce(settings, request.param), tmp_path_factory.mktemp("small")
    (tmp_path / "workflow").symlink_to(ROOT / "workflow")
    projects.write_settings(tmp_path, made)
    return settings, request.param, made, params.load(tmp_path, every=True)


def test_every_combination_of_a_file_has_one_arm(small):
    settings, path, made, loaded = small
    wanted = set()
    for name, study in studyfiles.part(settings, {path})["studies"].items():
        for arm in graph.study_arms({"studies": {name: study}}, name) if "of" not in study else ():
            wanted.add(combination(settings, arm.student))
    students = dict.fromkeys(a.student for study in made.arms for a in graph.study_arms(loaded, study))
    run = [combination(settings, student) for student in students]
    assert len(run) == len(set(run)) and set(run) == wanted
    shown = {n for n, v in studyfiles.part(settings, {path})["studies"].items() if "of" not in v}
    for missing in shown - set(made.arms):  # all its arms are named as those of others
        arms = graph.study_arms(settings, missing)
        assert all(f"{missing}/{a.student} on {a.dataset}" in made.same for a in arms)


def test_teachers_and_fits_of_the_arms_come_with_them(small):
    _, _, made, loaded = small
    studies = list(made.arms)
    assert set(graph.teacher_seeds(loaded, studies)) == set(made.teachers)
    assert {fit for (fit,) in graph.fit_seeds(loaded, studies)} == set(made.fits)
    students = {s for arms in made.arms.values() for s in arms}
    for users in [*made.teachers.values(), *made.fits.values()]:
        assert students & set(users)  # the row of one tells of them


def test_only_size_and_numbers_shrink(small):
    settings, _, made, loaded = small
    arms = graph.all_arms(loaded, list(made.arms))
    for name in {loaded["students"][a.student]["model"] for a in arms}:
        own, full = loaded["models"][name], settings["models"][name]
        free = full.get("attention") == "free"
        changed = {"image_size", "num_classes", "patch_size"} if free else {"image_size", "num_classes"}
        assert {k: v for k, v in own.items() if k not in changed} == {
            k: v for k, v in full.items() if k not in changed
        }
        assert own["image_size"] // own["patch_size"] >= 4 and not own["image_size"] % own["patch_size"]
    for arm in arms:
        own, full = loaded["students"][arm.student], settings["students"][arm.student]
        assert {**own, "labels": 0} == {**full, "labels": 0} and own["labels"] == CLASSES
        recipe = loaded["recipes"][own["recipe"]]
        assert recipe["epochs"] == STEPS and recipe["batch_size"] >= CLASSES  # an epoch is a step
        model, data = loaded["models"][own["model"]], loaded["datasets"][arm.dataset]
        assert made.sides[data["path"]] == (model["image_size"], model["in_chans"])
