import numpy as np
import pytest

from attnprior import files
from attnprior.config import Fit, Model
from attnprior.models.position import fixed_code
from attnprior.models.vit import build_vit
from attnprior.stages import fit_impulse
from tests.stages import commands

FOLDER = "fits/adam/seed0"


def test_a_fit_has_queries_keys_and_offsets_of_every_layer(made):
    tensors, header = files.load_tensors(made / FOLDER / "fit.safetensors", "numpy")
    assert tensors["q"].shape == (2, 2, 16, 8) and tensors["k"].shape == (2, 2, 8, 16)
    assert tensors["offsets"].shape == (2, 2, 2) and np.abs(tensors["offsets"]).max() <= 1
    assert (
        header["fit"]["steps"] == 250 and header["model"] == commands.MODEL and header["logit_scale"] == 0.5
    )


def test_metrics_describe_the_saved_maps(made):
    tensors, _ = files.load_tensors(made / FOLDER / "fit.safetensors", "numpy")
    metrics = files.read_json(made / FOLDER / "metrics.json")
    position = fixed_code(Model(**commands.MODEL)).numpy()
    errors, hits, masses, uniform = [], [], [], []
    for layer in range(2):
        hit, mass, square = [], [], []
        for head in range(2):
            logits = 0.5 * position @ tensors["q"][layer, head] @ tensors["k"][layer, head] @ position.T
            map_ = np.exp(logits - logits.max(1, keepdims=True))
            map_ /= map_.sum(1, keepdims=True)
            target = np.zeros((16, 16))
            dy, dx = tensors["offsets"][layer, head]
            for i in range(16):
                y, x = i // 4 + dy, i % 4 + dx
                if 0 <= y < 4 and 0 <= x < 4:
                    target[i, 4 * y + x] = 1
                    hit.append(map_[i].argmax() == 4 * y + x)
                    mass.append(map_[i, 4 * y + x])
            square.append(((map_ - target) ** 2).mean())
            uniform.append(((1 / 16 - target) ** 2).mean())
        errors.append(np.mean(square))
        hits.append(np.mean(hit))
        masses.append(np.mean(mass))
    assert metrics["layers"]["mse"] == pytest.approx(errors, rel=1e-4)
    assert metrics["mse"] == pytest.approx(np.mean(errors), rel=1e-4)
    assert metrics["hit_rate"] == pytest.approx(np.mean(hits), rel=1e-4)
    assert metrics["target_mass"] == pytest.approx(np.mean(masses), rel=1e-4)
    assert metrics["uniform_mse"] == pytest.approx(np.mean(uniform), rel=1e-4)
    assert metrics["mse"] < metrics["uniform_mse"] and metrics["hit_rate"] > 0.9


def test_the_operations_are_those_of_every_step(made):
    """By hand: of 16 tokens, width 16, head width 8, in 2 layers of 2 heads, 250 steps."""
    project, product, back = 2 * 16 * 16 * 8, 2 * 16 * 16 * 8, 2 * 16 * 16 * 8
    of_head = 2 * project + product + 2 * back + 2 * project  # Q and K, the map, both gradients, then by P
    header = files.read_header(made / FOLDER / "fit.safetensors")
    assert header["flops"]["own"] == 250 * 2 * 2 * of_head
    assert files.read_json(made / FOLDER / "metrics.json")["flops"] == header["flops"]["own"]


def test_the_history_has_a_row_per_hundred_steps(made):
    lines = (made / FOLDER / "history.csv").read_text().splitlines()
    assert lines[0] == "step,loss" and [x.split(",")[0] for x in lines[1:]] == ["0", "100", "200"]
    losses = [float(x.split(",")[1]) for x in lines[1:]]
    assert losses == sorted(losses, reverse=True)


def test_layers_draw_their_own_offsets_and_seeds_differ():
    settings = Fit(**{**commands.ADAM, "filter_size": 5})
    model = Model(**{**commands.MODEL, "depth": 6})
    first, second = (fit_impulse.fit_offsets(settings, model, seed, 6) for seed in (0, 1))
    assert first.shape == (6, 2, 2) and not (first == first[0]).all() and not (first == second).all()


def test_the_closed_form_has_a_header_only_history(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fit_impulse.main(commands.fit("svd")) == 0
    folder = tmp_path / "fits/svd/seed0"
    assert (folder / "history.csv").read_text() == "step,loss\n"
    assert files.read_json(folder / "metrics.json")["hit_rate"] > 0.9
    maps = 2 * 2 * (2 * 16 * 16 * 16 + 2 * 16 * 16 * 16)  # P^+ G P^+T of 4 heads, 16 tokens, width 16
    inverse = files.read_header(folder / "fit.safetensors")["flops"]["own"] - maps
    assert 0 < inverse <= 2 * 16 * 8 * 16  # P^+ of at most rank 8


def test_a_rerun_gives_the_same_bytes(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fit_impulse.main(commands.fit()) == 0
    for name in ("fit.safetensors", "metrics.json", "history.csv"):
        assert (tmp_path / FOLDER / name).read_bytes() == (made / FOLDER / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filter_size": 4}, "fits.adam.filter_size"),
        ({"solver": "newton"}, "fits.adam.solver"),
        ({"steps": None}, "fits.adam"),
    ],
)
def test_wrong_settings_name_their_key(tmp_path, monkeypatch, capsys, changes, message):
    monkeypatch.chdir(tmp_path)
    assert fit_impulse.main(commands.fit(**changes)) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_fit_shared_by_layers_is_made_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = {"first": "position", "rest": "position"}
    assert fit_impulse.main(commands.fit(layers="shared", inputs=inputs, logit_scale=None)) == 0
    tensors, header = files.load_tensors(tmp_path / FOLDER / "fit.safetensors", "numpy")
    for name in ("q", "k", "offsets"):
        assert len(tensors[name]) == 2 and (tensors[name][0] == tensors[name][1]).all()
    assert header["logit_scale"] == 8**-0.5  # that of the model
    assert header["flops"]["own"] == 250 * 2 * 7 * 2 * 16 * 16 * 8


def test_a_fit_of_free_queries_and_keys_has_tokens_for_channels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = commands.MODEL | {"attention": "free", "pos_embed": "none", "pos_at": "none", "alpha": 1.0}
    arguments = commands.fit(model=model | {"image_size": 6}, inputs=None)
    assert fit_impulse.main(arguments) == 0
    tensors, _ = files.load_tensors(tmp_path / FOLDER / "fit.safetensors", "numpy")
    assert tensors["q"].shape == (2, 2, 9, 8) and tensors["k"].shape == (2, 2, 8, 9)
    assert files.read_json(tmp_path / FOLDER / "metrics.json")["hit_rate"] > 0.9


def test_the_released_closed_form_brings_its_code_and_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learned = commands.MODEL | {"pos_embed": "learned", "pos_at": "input", "alpha": 1.0, "cls_token": True}
    changes = {"position_norm": 18.0, "value_norm": 2.0, "norm": 7.0, "logit_scale": None}
    assert fit_impulse.main(commands.fit("svd", model=learned, **changes)) == 0
    tensors, _ = files.load_tensors(tmp_path / "fits/svd/seed0/fit.safetensors", "numpy")
    random = build_vit(Model(**learned), 0).pos_embed.detach().numpy()
    np.testing.assert_array_equal(tensors["pos_embed"], np.float32(18) * random)
    for layer in range(2):
        assert np.linalg.norm(tensors["q"][layer], axis=(1, 2)) == pytest.approx(7, rel=1e-5)
        product = tensors["v"][layer].T @ tensors["proj"][layer].T / 4
        assert product.diagonal().mean() == pytest.approx(-0.4, abs=0.1)
    assert not np.allclose(tensors["v"][0], tensors["v"][1])
