"""Settings from several files: merged, checked where they are used, derived at a scale."""

import copy
import shutil

import pytest
import yaml

from attnprior.errors import UserError
from attnprior.workflow import graph, params, scaled, studyfiles
from tests.workflow import extra
from tests.workflow.project import ROOT


@pytest.fixture
def shipped():
    return extra.settings(params.read_yaml(ROOT / "params.yaml"))


@pytest.fixture
def root(tmp_path, shipped):
    """A folder with params.yaml, the schema and studies/extra.yaml."""
    (tmp_path / "workflow/schemas").mkdir(parents=True)
    shutil.copy(ROOT / params.SCHEMA, tmp_path / params.SCHEMA)
    (tmp_path / "studies").mkdir()
    write(tmp_path, "params.yaml", shipped)
    write(tmp_path, extra.FILE, extra.content(shipped))
    return tmp_path


def write(root, path, content):
    (root / path).write_text(yaml.safe_dump(content, sort_keys=False))


def test_entries_of_all_files_are_merged_and_know_their_file(root):
    found = params.load(root)
    assert "random_probe" in found["students"] and "random" in found["students"]
    assert studyfiles.file_of(found, "students.random_probe.labels") == extra.FILE
    assert studyfiles.file_of(found, "students.random") == "params.yaml"
    keys = ["students.random_probe__tiny", "models.model_i", "compute"]
    assert graph.tracked(found, keys) == {
        extra.FILE: ["students.random_probe"],
        "params.yaml": ["scales.tiny", "models.model_i", "compute"],
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda f: f["students"].update(random=f["students"]["random_probe"]),
            "students.random stands in params.yaml",
        ),
        (lambda f: f.update(students=[1]), "studies/extra.yaml: students must be a mapping"),
        (lambda f: f.update(compute={"device": "cpu"}), "studies/extra.yaml: unknown section 'compute'"),
        (
            lambda f: f["students"]["random_probe"].update(labels="many"),
            "studies/extra.yaml: students.random_probe.labels is 'many'",
        ),
        (
            lambda f: f["students"]["random_probe"].update(recipe="studnt"),
            "studies/extra.yaml: students.random_probe.recipe is 'studnt', which recipes does not",
        ),
        (
            lambda f: f["studies"]["probe_tiny"].update(of="other"),
            "studies.probe_tiny.of is 'other', must be a study",
        ),
        (
            lambda f: f["studies"]["probe_tiny"].update(scale="huge"),
            "scale is 'huge', which scales does not have",
        ),
        (
            lambda f: f["studies"]["probe"]["paper"]["values"]["digits_probe"].update(random_probe="x/y"),
            "studies.probe.paper: 'x/y' is no published value",
        ),
        (
            lambda f: f["studies"]["probe"]["paper"]["values"]["digits_probe"].update(random="x/y"),
            "studies.probe.paper.values has 'random', which the study does not",
        ),
    ],
)
def test_a_mistake_in_another_file_is_one_line_with_its_name(root, shipped, change, said):
    content = extra.content(shipped)
    change(content)
    write(root, extra.FILE, content)
    with pytest.raises(UserError) as caught:
        params.load(root)
    assert said in str(caught.value)


def test_a_data_set_and_a_number_of_labels_are_named_with_their_file(root, shipped):
    content = extra.content(shipped)
    content["students"]["random_probe"]["labels"] = 3
    write(root, extra.FILE, content)
    with pytest.raises(UserError, match=r"^studies/extra\.yaml: students\.random_probe\.labels is 3"):
        params.load(root)
    content = extra.content(shipped)
    content["datasets"]["digits_probe"]["channels"] = 1
    write(root, extra.FILE, content)
    with pytest.raises(
        UserError, match=r"^studies/extra\.yaml: datasets\.digits_probe\.channels is not used"
    ):
        params.load(root)


def test_a_file_whose_name_is_not_read_or_that_has_a_section_twice_is_refused(root):
    with (root / extra.FILE).open("a") as f:
        f.write("\nstudies:\n  again: {of: probe, scale: tiny}\n")
    with pytest.raises(UserError, match=r"extra\.yaml: line \d+: studies stands here twice"):
        params.load(root, studies=["again"])
    (root / extra.FILE).rename(root / "studies/extra.yml")
    with pytest.raises(UserError, match=r"studies/extra\.yml: would not be read"):
        params.load(root)


def test_an_unknown_name_is_answered_with_few_names_and_none_that_is_derived(root, shipped):
    content = extra.content(shipped)
    content["studies"]["probe"]["panels"]["main"]["controls"] = ["nobody"]
    write(root, extra.FILE, content)
    with pytest.raises(UserError, match=r"known: \d+ names, see students in params\.yaml and studies"):
        params.load(root)
    content["studies"]["probe"]["panels"]["main"]["controls"] = []
    content["studies"]["probe"]["datasets"] = ["digits_1401"]
    write(root, extra.FILE, content)
    with pytest.raises(UserError, match="did you mean 'digits_1400'") as caught:
        params.load(root)
    assert "__tiny" not in str(caught.value)


def test_a_name_that_a_derived_entry_gets_is_refused(root, shipped):
    content = extra.content(shipped)
    content["students"]["random_probe__tiny"] = copy.deepcopy(content["students"]["random_probe"])
    write(root, extra.FILE, content)
    with pytest.raises(UserError, match=r"extra\.yaml: students\.random_probe__tiny has the name that"):
        params.load(root)


def test_a_circle_of_teachers_in_a_scaled_study_is_named(root, shipped):
    content = extra.content(shipped)
    content["teachers"]["circle"] = {
        "source": "student",
        "student": "copy_probe",
        "model": content["students"]["copy_probe"]["model"],
        "dataset": None,
        "probe": dict(content["teachers"]["teacher_probe"]["probe"]),
    }
    content["students"]["copy_probe"]["transfer"] |= {"method": "distil", "teacher": "circle", "weight": 1.0}
    write(root, extra.FILE, content)
    with pytest.raises(UserError, match=r"^studies/extra\.yaml: .* made of each other \(circle <- circle\)"):
        params.load(root)


def test_a_teacher_of_a_scaled_study_may_have_a_data_set_of_its_own(root, shipped):
    made = extra.content(shipped)
    made["teachers"]["teacher_probe"] = {**made["teachers"]["teacher_probe"], "dataset": "digits"}
    write(root, extra.FILE, made)
    found = params.load(root, every=True)
    assert "digits__tiny" in graph.datasets_of(found, ["probe_tiny"])


def test_a_reference_goes_to_the_own_file_to_params_or_to_a_file_without_studies(root, shipped):
    other = {"students": {"more": copy.deepcopy(extra.content(shipped)["students"]["random_probe"])}}
    write(root, "studies/more.yaml", other)
    with pytest.raises(
        UserError, match=r"more\.recipe is 'recipe_probe', which stands in studies/extra\.yaml; it may"
    ):
        params.load(root, every=True)
    content = extra.content(shipped)
    write(root, "studies/shared.yaml", {"recipes": content.pop("recipes")})
    write(root, extra.FILE, content)
    assert params.load(root, every=True)["students"]["more"]["recipe"] == "recipe_probe"


def test_files_of_studies_that_are_not_active_are_checked_when_they_are_asked_for(root, shipped):
    shipped["active"] = ["digits"]
    write(root, "params.yaml", shipped)
    content = extra.content(shipped)
    content["students"]["random_probe"]["labels"] = "many"
    write(root, extra.FILE, content)
    params.load(root)
    for asked in ({"studies": ["probe"]}, {"every": True}):
        with pytest.raises(UserError, match="labels is 'many'"):
            params.load(root, **asked)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recipes: &all\n  a: {x: 1}\nmodels: *all\n", "is used again through an anchor"),
        ("recipes:\n  a: &a {x: 1}\n  b: {<<: *a, y: 2}\n", "is used again through an anchor"),
        ("recipes:\n  a: {x: 1}\n  a: {x: 2}\n", "line 3: a stands here twice"),
    ],
)
def test_what_dvc_or_a_reader_would_lose_is_refused(text, said):
    with pytest.raises(UserError, match=said):
        studyfiles.check_plain("studies/x.yaml", text)


def test_a_scaled_study_shares_no_entry_and_no_file_with_its_origin(root):
    found = params.load(root)
    assert set(graph.targets(found, ["probe_tiny"])).isdisjoint(graph.targets(found, ["probe"]))
    study = found["studies"]["probe_tiny"]
    assert study["seeds"] == [0, 1] and study["datasets"] == ["digits_probe__tiny"]
    assert study["panels"]["main"]["arms"] == [
        "random_probe__tiny",
        "impulse_probe__tiny",
        "copy_probe__tiny",
    ]
    assert study["scaled"]["epochs"] == "2 of 4" and study["scaled"]["seeds"] == "2 of 3"
    assert found["recipes"]["recipe_probe__tiny"]["epochs"] == 2
    assert found["recipes"]["recipe_probe__tiny"]["warmup_epochs"] == 0.5
    assert found["fits"]["fit_probe__tiny"]["steps"] == 50
    assert found["students"]["copy_probe__tiny"]["transfer"]["teacher"] == "teacher_probe__tiny"
    assert found["students"]["copy_probe__tiny"]["labels"] == 60
    assert found["students"]["copy_probe"]["labels"] == 100


def test_settings_of_a_derived_entry_hold_what_dvc_tracks(root):
    found = params.load(root)
    made = params.settings(found, "students.random_probe__tiny")
    assert {"students.random_probe__tiny", "students.random_probe", "scales.tiny"} == set(
        yaml.safe_load(made)
    )


def test_a_scaled_study_follows_the_epochs_that_its_tables_compare_with(root, shipped):
    found = params.load(root)
    assert "recipes.recipe_probe.epochs" in studyfiles.sources(found, "studies.probe_tiny")
    assert "recipes.recipe_probe.epochs" in graph.tracked(found, ["studies.probe_tiny"])[extra.FILE]
    content = extra.content(shipped)
    content["recipes"]["recipe_probe"]["epochs"] = 5
    write(root, extra.FILE, content)
    changed = params.load(root)
    assert changed["studies"]["probe_tiny"]["scaled"]["epochs"] == "2 of 5"
    assert params.settings(changed, "studies.probe_tiny") != params.settings(found, "studies.probe_tiny")


def test_settings_of_digits_are_those_of_params_alone(root):
    alone = params.read_yaml(ROOT / "params.yaml")
    found = params.load(root)
    for key in ("students.copy", "studies.digits", "datasets.digits"):
        assert params.settings(found, key) == params.settings(alone, key)


def test_a_scaled_study_of_a_wrong_one_is_left_out_unless_it_is_asked_for(shipped):
    shipped["studies"]["lost"] = {"of": "nothing", "scale": "tiny"}
    assert "lost" not in scaled.expand(shipped, files=set())["studies"]
    with pytest.raises(UserError, match="of is 'nothing'"):
        scaled.expand(shipped)


def scalars(value) -> set:
    """Return every text that stands as a value somewhere below `value`."""
    if isinstance(value, dict | list):
        return set().union(*map(scalars, value.values() if isinstance(value, dict) else value))
    return {value} if isinstance(value, str) else set()


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda p: p.name)
def test_every_entry_of_a_shipped_file_is_used_in_it(path):
    content = yaml.safe_load(path.read_text())
    used = scalars(content)
    entries = {n for name, section in content.items() if name != "studies" for n in section or {}}
    assert entries and entries - used == set()
