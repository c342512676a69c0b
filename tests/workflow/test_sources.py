"""Teachers made of students, files and other data sets: what is asked for, and what is refused."""

import copy
import re

import pytest

from attnprior.errors import UserError
from attnprior.workflow import costs, dvc_arms, graph, mapped, params, verify
from attnprior.workflow.params import read_yaml
from tests.workflow.project import ROOT

SCHEMA = read_yaml(ROOT / params.SCHEMA)
PROBE = {"labels": 50, "weight_decay": 0.01, "steps": 20}


@pytest.fixture
def shipped():
    """Settings with a student behind a teacher, a teacher of another data set and one in a file."""
    found = copy.deepcopy(read_yaml(ROOT / "params.yaml"))
    common = {"model": "model_i", "dataset": None, "probe": PROBE}
    found["teachers"] |= {
        "tuned": {"source": "student", "student": "tuned_student", **common},
        "elsewhere": found["teachers"]["mae_model_i"] | {"dataset": "digits_1400"},
        "given": {"source": "file", "path": "weights/mae.pth", "format": "timm", **common},
    }
    students = found["students"]
    students["tuned_student"] = copy.deepcopy(students["finetune"])
    for name, teacher in (("copy_tuned", "tuned"), ("copy_elsewhere", "elsewhere"), ("copy_given", "given")):
        students[name] = copy.deepcopy(students["copy"])
        students[name]["transfer"]["teacher"] = teacher
    students["both"] = copy.deepcopy(students["distil"])
    students["both"]["init"] = {"source": "teacher", "teacher": "elsewhere"}
    panel = {"title": "T", "baseline": "copy_tuned", "controls": []}
    panel["arms"] = ["copy_tuned", "copy_elsewhere", "copy_given", "both"]
    found["studies"]["digits"] |= {"panels": {"one": panel}, "seeds": [0, 1]}
    return found


def complaint(settings):
    with pytest.raises(UserError) as error:
        params.validate(settings, SCHEMA)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_settings_are_valid(shipped):
    params.validate(shipped, SCHEMA)


def test_a_student_behind_a_teacher_is_made_but_not_shown(shipped):
    shown = {a.student for a in graph.study_arms(shipped, "digits")}
    made = {a.student: a.seeds for a in graph.all_arms(shipped)}
    assert "tuned_student" not in shown and made["tuned_student"] == (0, 1)
    targets = graph.targets(shipped)
    assert len(targets) == len(set(targets))
    assert "runs/digits/tuned_student/seed1/weights.safetensors" in targets
    assert "teachers/digits/tuned/seed1/weights.safetensors" in targets
    assert not any("tuned_student" in f for f in graph.study_runs(shipped, "digits", "metrics.json"))
    assert graph.teacher_source(shipped, "digits", "tuned", 1) == [
        "runs/digits/tuned_student/seed1/weights.safetensors"
    ]
    # its own teacher is made, too
    assert graph.teacher_seeds(shipped)["digits", "mae_model_i"] == [0, 1]


def test_a_fixed_teacher_seed_holds_for_the_student_behind_the_teacher(shipped):
    shipped["studies"]["digits"]["teacher_seed"] = 3
    assert {a.student: a.seeds for a in graph.all_arms(shipped)}["tuned_student"] == (3,)
    assert graph.teacher_file(shipped, "digits", "copy_tuned", 1, "transfer") == [
        "teachers/digits/tuned/seed3/weights.safetensors"
    ]
    assert graph.teacher_file(shipped, "digits", "tuned_student", 3, "init") == [
        "teachers/digits/mae_model_i/seed3/weights.safetensors"
    ]


def test_a_teacher_of_another_data_set_is_made_there(shipped):
    assert graph.teacher_file(shipped, "digits", "copy_elsewhere", 0, "transfer") == [
        "teachers/digits_1400/elsewhere/seed0/weights.safetensors"
    ]
    assert "data/digits_1400.safetensors" in graph.targets(shipped)
    data, weights = mapped.map_files(shipped, "digits")
    assert data == ["data/digits.safetensors", "data/digits_1400.safetensors"]
    assert "teachers/digits_1400/elsewhere/seed0/weights.safetensors" in weights


def test_two_teachers_are_two_inputs(shipped):
    first, second = (graph.teacher_file(shipped, "digits", "both", 0, p) for p in ("init", "transfer"))
    assert first == ["teachers/digits_1400/elsewhere/seed0/weights.safetensors"]
    assert second == ["teachers/digits/mae_model_i/seed0/weights.safetensors"]
    assert graph.teacher_weights(shipped, "digits", "both", 0) == [*first, *second]
    entry = dvc_arms.dvc_structure(shipped)["graph"]["arms"]["digits-both"]
    assert entry["init_teacher"] == "teachers/digits_1400/elsewhere"
    assert entry["teacher"] == "teachers/digits/mae_model_i"


def test_dvc_reads_what_a_teacher_is_made_of(shipped):
    teachers = dvc_arms.dvc_structure(shipped)["graph"]["teachers"]
    assert teachers["digits-tuned"]["source"] == "runs/digits/tuned_student"
    assert teachers["digits-given"]["source"] == "weights/mae.pth"
    assert teachers["digits_1400-elsewhere"]["source"] == "data/digits_1400.safetensors"
    assert teachers["digits_1400-elsewhere"]["data"] == "data/digits_1400.safetensors"


def test_costs_have_every_job_after_those_it_waits_for(shipped):
    jobs = costs.jobs_of(shipped, "digits")
    keys = [j.key for j in jobs]
    assert len(set(keys)) == len(keys)
    for i, job in enumerate(jobs):
        assert set(job.after) <= set(keys[:i]), job.key
    made = {re.sub(r"/seed(\d+)/.*", r"/seed\1", t) for t in graph.targets(shipped) if "/seed" in t}
    trained = [k for k in keys if k.split("/")[0] in ("train_student", "pretrain_teacher", "fit_impulse")]
    assert len(made) == len(trained)
    assert "evaluate/digits/tuned_student/seed0" in keys
    compare = next(j for j in jobs if j.key == "compare/digits")
    assert not any("tuned_student" in k for k in compare.after) and len(compare.after) == 8


def test_verifying_places_the_files_that_no_job_makes(shipped):
    assert verify.make_plan(shipped, "digits", []).inputs == ("weights/mae.pth",)
    arm = verify.make_plan(shipped, "digits-both", [0])
    assert set(arm.inputs) == {
        "data/digits.safetensors",
        "teachers/digits_1400/elsewhere/seed0/weights.safetensors",
        "teachers/digits/mae_model_i/seed0/weights.safetensors",
    }


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("tuned.student", "tuned_studnt", "teachers.tuned.student is 'tuned_studnt'"),
        ("tuned.student", "copy", "copies attention"),
        ("tuned.model", "vit", "teachers.tuned.model is 'vit', must be 'model_i'"),
        ("tuned.path", "x", "teachers.tuned.path is not used by 'student'"),
        ("given.path", "/mnt/mae.pth", "must be relative to the checkout"),
        ("given.path", "../mae.pth", "must be relative to the checkout"),
        ("given.path", "./mae.pth", "must be relative to the checkout"),
        ("given.path", "runs/digits/x/weights.safetensors", "runs/ is for what jobs make"),
        ("given.format", "keras", "teachers.given.format is 'keras'"),
        ("given.recipe", "mae", "teachers.given.recipe is not used by 'file'"),
        ("elsewhere.dataset", "digits_140", "teachers.elsewhere.dataset is 'digits_140'"),
        ("elsewhere.probe", PROBE | {"labels": 1401}, "to 1400 (training images of digits_1400)"),
    ],
)
def test_a_wrong_source_is_one_line(shipped, key, value, said):
    name, last = key.split(".")
    shipped["teachers"][name][last] = value
    assert said in complaint(shipped)


def test_a_teacher_needs_every_key_of_its_source(shipped):
    for name, key in (("tuned", "student"), ("given", "path"), ("given", "format"), ("given", "dataset")):
        changed = copy.deepcopy(shipped)
        del changed["teachers"][name][key]
        assert f"missing key teachers.{name}.{key}" in complaint(changed)


def test_teachers_that_are_made_of_each_other_are_a_circle(shipped):
    shipped["students"]["tuned_student"]["init"]["teacher"] = "tuned"
    assert "made of each other (tuned <- tuned)" in complaint(shipped)
    shipped["teachers"]["other"] = shipped["teachers"]["tuned"] | {"student": "other_student"}
    shipped["students"]["tuned_student"]["init"]["teacher"] = "other"
    shipped["students"]["other_student"] = copy.deepcopy(shipped["students"]["tuned_student"])
    shipped["students"]["other_student"]["init"]["teacher"] = "tuned"
    assert "made of each other (tuned <- other <- tuned)" in complaint(shipped)


def test_weights_are_handed_on_between_models_that_differ_in_their_classes_alone(shipped):
    shipped["models"]["other_classes"] = shipped["models"]["model_i"] | {"num_classes": 7}
    shipped["teachers"]["elsewhere"]["model"] = "other_classes"
    params.validate(shipped, SCHEMA)
    shipped["models"]["other_classes"]["mlp_ratio"] = 3.0
    assert "its model has mlp_ratio 3.0 and the student's 2.0" in complaint(shipped)
