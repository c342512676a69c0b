"""What params.yaml asks for: arms, seeds, files and the structure for DVC."""

import copy

import pytest

from attnprior.workflow import dvc_arms, dvc_studies, graph, mapped, sync
from attnprior.workflow.params import read_yaml
from tests.workflow.project import ROOT


@pytest.fixture
def params():
    return copy.deepcopy(read_yaml(ROOT / "params.yaml"))


def test_an_arm_asks_for_teacher_or_fit_only_where_the_student_uses_it(params):
    assert graph.teacher_weights(params, "digits", "impulse", 3) == []
    assert graph.fit_file(params, "digits", "impulse", 3) == ["fits/impulse3/seed3/fit.safetensors"]
    assert graph.fit_file(params, "digits", "copy", 3) == []
    assert graph.teacher_weights(params, "digits", "copy", 3) == [
        "teachers/digits/mae_model_i/seed3/weights.safetensors"
    ]
    assert graph.teacher_weights(params, "digits", "impulse_distil", 1) != []
    assert graph.fit_file(params, "digits", "impulse_distil", 1) != []


def test_processes_of_a_job_follow_its_recipe_and_its_students_overrides(params):
    def of(student):
        return graph.processes(params, graph.student_keys(params, student))

    assert of("random") == 1
    params["students"]["random"]["overrides"] = {"accumulate": 4, "processes": 3}
    assert of("random") == 3 and of("mimetic") == 1
    params["recipes"]["mae"] |= {"accumulate": 2, "processes": 2}
    assert graph.processes(params, graph.teacher_keys(params, "mae_model_i")) == 2
    assert graph.processes(params, graph.teacher_keys(params, "random_model_i")) == 1
    assert graph.processes(params, graph.fit_keys(params, "impulse3")) == 1


def test_a_study_can_fix_one_teacher_for_all_seeds(params):
    params["studies"]["digits"]["teacher_seed"] = 2
    assert graph.teacher_weights(params, "digits", "copy", 4) == [
        "teachers/digits/mae_model_i/seed2/weights.safetensors"
    ]
    assert set(map(tuple, graph.teacher_seeds(params).values())) == {(2,)}
    arms = dvc_arms.dvc_structure(params)["graph"]["arms"]
    assert arms["digits-copy"]["sources"] == "teachers/digits/mae_model_i/seed2/weights.safetensors"
    assert arms["digits-impulse"]["sources"] == "fits/impulse3/seed2/fit.safetensors"
    assert arms["digits-random"]["sources"] == "no teacher or fit"


def test_a_study_that_is_not_active_has_its_own_teacher_seed_but_an_active_one_comes_first(params):
    params["studies"]["digits_labels"]["teacher_seed"] = 3
    assert graph.source_seed(params, "digits_1400", "copy", 0) == 3
    params["studies"]["digits_labels"]["datasets"] = ["digits"]
    assert graph.source_seed(params, "digits", "copy", 0) == 0
    assert graph.source_seed(params, "digits", "copy_50", 0) == 3


def test_figures_and_page_depend_on_the_settings_of_their_students(params):
    keys = dvc_studies.study_stages(params)["study-digits"]["params"]
    assert keys[0] == "studies.digits" and "students.permuted_labels" in keys
    assert "students.copy_50" not in keys and len(keys) == len(set(keys))
    assert sum(k.startswith("students.") for k in keys) == 14


def test_dvc_plots_label_budgets_where_a_study_has_them(params):
    title = "test accuracy by number of labels"
    assert not any(title in name for plot in dvc_studies.study_plots(params) for name in plot)
    params["active"] = ["digits_labels"]
    (plot,) = [p for p in dvc_studies.study_plots(params) if f"digits_labels: {title}" in p]
    (values,) = plot.values()
    (families,) = values["y"].values()
    assert families == ["random", "mimetic", "impulse", "finetune", "copy", "distil"]


def test_studies_share_arms_and_their_seeds_are_joined(params):
    other = copy.deepcopy(params["studies"]["digits"])
    other["seeds"] = [3, 7]
    params["studies"]["other"] = other
    params["active"] = ["digits", "other"]
    arms = {a.key: a.seeds for a in graph.all_arms(params)}
    assert len(arms) == 14
    assert set(arms.values()) == {(0, 1, 2, 3, 4, 7)}
    assert [a.seeds for a in graph.study_arms(params, "other")] == [(3, 7)] * 14


def test_targets_name_every_artifact_once(params):
    files = graph.targets(params)
    assert len(files) == len(set(files))
    records = [f for f in files if f.endswith("run.json")]
    assert len(records) == 165  # one for each job
    assert "runs/digits/vit_distil/seed4/predictions.safetensors" in files


def test_figures_show_the_maps_of_the_first_arm_with_an_impulse_fit(params):
    assert graph.impulse_files(params, "digits") == (
        ["fits/impulse3/seed0/fit.safetensors"],
        ["runs/digits/impulse/seed0/weights.safetensors"],
    )
    deps = dvc_studies.study_stages(params)["study-digits"]["deps"]
    assert {"fits/impulse3/seed0/fit.safetensors", "runs/digits/impulse/seed0/weights.safetensors"} <= {*deps}
    params["studies"]["digits"]["panels"]["model_i"]["arms"] = ["random", "copy"]
    assert graph.impulse_files(params, "digits") == ([], [])
    assert not any("fits" in d for d in dvc_studies.study_stages(params)["study-digits"]["deps"])


def test_the_order_of_keys_decides_nothing(monkeypatch, params):
    monkeypatch.chdir(ROOT)
    panels = params["studies"]["digits"]["panels"]
    panels["vit"]["arms"] = ["vit_random", "impulse_distil"]  # another arm that starts from a fit
    before = graph.impulse_files(params, "digits"), graph.targets(params), dvc_arms.dvc_structure(params)
    text = sync.dvc_text(params, (ROOT / "dvc.yaml").read_text())
    params["studies"]["digits"]["panels"] = dict(reversed(panels.items()))
    assert (
        graph.impulse_files(params, "digits"),
        graph.targets(params),
        dvc_arms.dvc_structure(params),
    ) == before
    assert sync.dvc_text(params, text) == text


def test_tables_of_a_study_list_its_runs_only(params):
    params["studies"]["digits"]["panels"]["vit"]["arms"] = ["vit_random"]
    runs = graph.study_runs(params, "digits", "metrics.json")
    assert len(runs) == 11 * 5
    assert not any("vit_copy" in r for r in runs)


def test_generated_files_follow_from_the_settings(monkeypatch, params):
    monkeypatch.chdir(ROOT)
    assert sync.outdated(params) == []
    params["studies"]["digits"]["seeds"].append(9)
    assert sync.outdated(params) == ["workflow/arms.yaml"]
    params["studies"]["digits"]["panels"]["model_i"]["controls"] = []
    assert sync.outdated(params) == ["workflow/arms.yaml", "dvc.yaml"]


def test_generated_text_is_stable(monkeypatch, params):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "dvc.yaml").read_text()
    assert sync.dvc_text(params, sync.dvc_text(params, text)) == sync.dvc_text(params, text)


def many(params, panels=6, arms=6):
    """Give the study many arms: copies of the shipped students."""
    students = params["students"]
    params["studies"]["digits"]["panels"] = {}
    for p in range(panels):
        names = [f"p{p}_arm{i}" for i in range(arms)]
        for i, name in enumerate(names):
            students[name] = students["copy" if i else "random"]
        panel = {"title": f"P{p}", "baseline": names[0], "arms": names, "controls": []}
        params["studies"]["digits"]["panels"][f"p{p}"] = panel


def test_maps_are_made_of_one_seed_of_each_arm_and_of_the_teachers_behind_them(params):
    data, weights = mapped.map_files(params, "digits")
    assert data == ["data/digits.safetensors"]
    students = [w for w in weights if w.startswith("runs/")]
    assert students == [
        f"{a.directory}/seed0/weights.safetensors" for a in graph.study_arms(params, "digits")
    ]
    assert [w for w in weights if not w.startswith("runs/")] == [
        f"teachers/digits/{t}/seed0/weights.safetensors" for t in ("mae_model_i", "random_model_i", "mae_vit")
    ]
    names = ("mae_model_i", "mae_vit", "random_model_i")
    assert mapped.map_keys(params, "digits") == ["compute", *(f"teachers.{name}" for name in names)]


def test_maps_follow_the_seed_of_a_fixed_teacher(params):
    params["studies"]["digits"]["teacher_seed"] = 3
    weights = mapped.map_files(params, "digits")[1]
    assert "teachers/digits/mae_model_i/seed3/weights.safetensors" in weights
    assert "runs/digits/copy/seed0/weights.safetensors" in weights


def test_of_many_arms_the_first_of_every_data_set_are_mapped(params):
    many(params)
    assert len(mapped.mapped_arms(params, "digits")) == 16
    params["studies"]["digits"]["datasets"] = ["digits", "letters", "faces"]
    arms = mapped.mapped_arms(params, "digits")
    assert [a.dataset for a in arms] == ["digits"] * 5 + ["letters"] * 5 + ["faces"] * 5
    assert [a.student for a in arms[:5]] == [f"p0_arm{i}" for i in range(5)]
    data, weights = mapped.map_files(params, "digits")
    assert data == [f"data/{d}.safetensors" for d in ("digits", "letters", "faces")]
    assert len(set(weights)) == len(weights)


def test_figures_depend_on_the_filters_of_the_study_the_page_does_not(params):
    students = params["students"]
    students["mixer"] = {**students["random"], "model": "convmixer", "init": {"source": "filters"}}
    params["studies"]["digits"]["panels"]["model_i"]["controls"] = ["mixer"]
    keys = graph.study_keys(params, "digits")
    assert graph.figure_keys(params, "digits") == [*keys, "fits.impulse3", "models.convmixer"]
    declared = dvc_studies.study_stages(params)["study-digits"]["params"]
    assert {"fits.impulse3", "models.convmixer"} <= set(declared)


def test_a_study_without_teachers_maps_its_students_alone(params):
    panel = params["studies"]["digits"]["panels"]["model_i"]
    panel["arms"], panel["controls"] = ["random", "impulse"], []
    params["studies"]["digits"]["panels"] = {"model_i": panel}
    assert [w.split("/")[0] for w in mapped.map_files(params, "digits")[1]] == ["runs", "runs"]
    assert mapped.map_keys(params, "digits") == ["compute"]
    assert not any("teachers" in d for d in dvc_studies.study_stages(params)["study-digits"]["deps"])
