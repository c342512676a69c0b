"""Names, tags and parameters of MLflow runs, and which studies use a job."""

from pathlib import Path

import pytest

from attnprior.workflow import graph, mlflow_names, params

ROOT = Path(__file__).parents[2]


def test_names_sort_by_stage_arm_and_seed():
    def name(student, seed):
        job = f"train_student/digits/{student}/seed{seed}"
        return mlflow_names.run_name({"job": job, "wildcards": {"seed": seed}})

    assert name("copy", 3) == "train_student/digits/copy/seed003"
    assert sorted([name("copy", 10), name("copy", 9)]) == [name("copy", 9), name("copy", 10)]
    assert (
        mlflow_names.run_name({"job": "compare/digits", "wildcards": {"study": "digits"}}) == "compare/digits"
    )


def test_every_record_of_the_shipped_study_belongs_to_a_rule_and_to_the_study():
    settings = params.load(ROOT)
    found = mlflow_names.studies_of(settings)
    own = {f for f in graph.targets(settings, ["digits"]) if f.endswith("run.json")}
    assert {f for f, studies in found.items() if "digits" in studies} == own
    assert {tuple(found[f]) for f in own if not f.startswith("fits/")} == {("digits",)}
    for rule, wildcards in [
        ("fetch_dataset", {"dataset": "digits"}),
        ("pretrain_teacher", {"dataset": "digits", "teacher": "mae_vit", "seed": 4}),
        ("fit_impulse", {"fit": "impulse3", "seed": 0}),
        ("train_student", {"dataset": "digits", "student": "copy", "seed": 1}),
        ("evaluate", {"dataset": "digits", "student": "copy", "seed": 1}),
        *[(rule, {"study": "digits"}) for rule in ("compare", "extract_maps", "draw", "report")],
    ]:
        assert mlflow_names.record_of(rule, wildcards) in found
    assert mlflow_names.record_of("other", {}) == ""


def test_a_job_of_two_studies_names_both():
    settings = params.load(ROOT)
    one = settings["studies"]["digits"]
    settings["studies"]["again"] = {**one, "seeds": [1], "datasets": ["digits"]}
    found = mlflow_names.studies_of(settings)
    assert found["runs/digits/copy/seed1/run.json"] == ["digits", "again"]
    assert found["runs/digits/copy/seed2/run.json"] == ["digits"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"students.copy": {"labels": 200}}, {"student.name": "copy", "student.labels": "200"}),
        ({"recipes.mae": {"betas": [0.9, 0.95]}}, {"recipe.name": "mae", "recipe.betas": "[0.9, 0.95]"}),
        (
            {"studies.s": {"title": "T"}, "evaluation": {"bins": 15}},
            {"study.name": "s", "study.title": "T", "evaluation.bins": "15"},
        ),
        (
            {"models.a": {"depth": 1}, "models.b": {"depth": 2}},
            {"models.a.depth": "1", "models.b.depth": "2"},
        ),
        ({"fits.f": None}, {"fits.f": "null"}),
    ],
)
def test_parameters_of_one_entry_share_columns_between_jobs(given, expected):
    assert mlflow_names.columns(given) == expected
