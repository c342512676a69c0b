"""What params.yaml asks for: arms, seeds, files and the structure for DVC."""

import copy

import pytest

from attnprior.workflow import dvc_studies, graph, sync
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


def test_a_study_can_fix_one_teacher_for_all_seeds(params):
    params["studies"]["digits"]["teacher_seed"] = 2
    assert graph.teacher_weights(params, "digits", "copy", 4) == [
        "teachers/digits/mae_model_i/seed2/weights.safetensors"
    ]
    assert set(map(tuple, graph.teacher_seeds(params).values())) == {(2,)}
    arms = graph.dvc_structure(params)["graph"]["arms"]
    assert arms["digits-copy"]["sources"] == "teachers/digits/mae_model_i/seed2/weights.safetensors"
    assert arms["digits-impulse"]["sources"] == "fits/impulse3/seed2/fit.safetensors"
    assert arms["digits-random"]["sources"] == "no teacher or fit"


def test_studies_share_arms_and_their_seeds_are_joined(params):
    other = copy.deepcopy(params["studies"]["digits"])
    other["seeds"] = [3, 7]
    params["studies"]["other"] = other
    params["active"] = ["digits", "other"]
    arms = {a.key: a.seeds for a in graph.all_arms(params)}
    assert len(arms) == 13
    assert set(arms.values()) == {(0, 1, 2, 3, 4, 7)}
    assert [a.seeds for a in graph.study_arms(params, "other")] == [(3, 7)] * 13


def test_targets_name_every_artifact_once(params):
    files = graph.targets(params)
    assert len(files) == len(set(files))
    records = [f for f in files if f.endswith("run.json")]
    assert len(records) == 154  # one for each job
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
    before = graph.impulse_files(params, "digits"), graph.targets(params), graph.dvc_structure(params)
    text = sync.dvc_text(params, (ROOT / "dvc.yaml").read_text())
    params["studies"]["digits"]["panels"] = dict(reversed(panels.items()))
    assert (
        graph.impulse_files(params, "digits"),
        graph.targets(params),
        graph.dvc_structure(params),
    ) == before
    assert sync.dvc_text(params, text) == text


def test_tables_of_a_study_list_its_runs_only(params):
    params["studies"]["digits"]["panels"]["vit"]["arms"] = ["vit_random"]
    runs = graph.study_runs(params, "digits", "metrics.json")
    assert len(runs) == 10 * 5
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
