from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attnprior import config
from attnprior.init import impulse
from attnprior.init.inputs import fit_inputs, fits_of_layers, starting_code
from attnprior.models.position import fixed_code
from attnprior.models.vit import build_vit
from tests.oracle import FREE, MODEL, STANDARD

FIT = config.Fit(
    "m", 3, "random", "adam", "each", 0.1, 10, 1e-3, 0, inputs=config.Inputs("position", "position")
)


def fit(first="position", rest=None, layers="each", **changes):
    return replace(FIT, layers=layers, inputs=config.Inputs(first, rest or first), **changes)


def test_layers_share_a_fit_where_their_inputs_are_the_same():
    assert fits_of_layers(fit(), 4) == [0, 1, 2, 3]
    assert fits_of_layers(fit(layers="shared"), 4) == [0, 0, 0, 0]
    assert fits_of_layers(fit("position", "uniform", "shared"), 4) == [0, 1, 1, 1]
    assert fits_of_layers(replace(FIT, layers="shared", inputs=None), 3) == [0, 0, 0]


def test_the_position_code_of_the_model_is_the_input_as_its_layers_see_it():
    assert torch.equal(fit_inputs(fit(), MODEL, None, 0), fixed_code(MODEL))
    normed = F.layer_norm(fixed_code(STANDARD), (32,))
    assert torch.equal(fit_inputs(fit(), STANDARD, None, 0), normed)
    assert torch.equal(fit_inputs(replace(FIT, inputs=None), FREE, None, 0), torch.eye(16))


def test_pseudo_inputs_have_their_published_laws():
    model = replace(MODEL, embed_dim=512, image_size=32)
    code = fixed_code(model)
    made = {n: fit_inputs(fit(n), model, None, 0) for n in ("uniform", "gaussian")}
    assert made["uniform"].abs().max() <= 1 and made["uniform"].std().item() == pytest.approx(
        3**-0.5, rel=0.01
    )
    assert made["gaussian"].std().item() == pytest.approx(0.5**0.5, rel=0.01)
    for name, noise in made.items():
        torch.testing.assert_close(fit_inputs(fit(f"position_{name}"), model, None, 0), code + noise)
        assert not torch.equal(fit_inputs(fit(name), model, None, 1), noise)
    normed = fit_inputs(fit("position_uniform"), replace(model, pos_at="input", alpha=1.0), None, 0)
    torch.testing.assert_close(normed, F.layer_norm(code + made["uniform"], (512,)))


def test_first_layer_and_rest_can_have_inputs_of_their_own():
    each = fit_inputs(fit("position", "gaussian"), MODEL, None, 0)
    assert each.shape == (3, 1, 16, 32)
    assert torch.equal(each[0, 0], fixed_code(MODEL)) and torch.equal(each[1], each[2])
    shared = fit_inputs(fit("position", "gaussian", "shared"), MODEL, None, 0)
    assert torch.equal(shared, each[:2])


def test_a_learned_code_is_that_of_the_random_student_times_its_factor():
    model = replace(STANDARD, pos_embed="learned")
    settings = fit(position_norm=18.0)
    code = starting_code(settings, model, 3)
    assert torch.equal(code, 18 * build_vit(model, 3).pos_embed)
    assert code.std().item() == pytest.approx(0.36, rel=0.1) and not code.requires_grad
    normed = F.layer_norm(code[0, 1:], (32,))
    assert torch.equal(fit_inputs(settings, model, code, 3), normed)
    assert starting_code(fit(), MODEL, 0) is None


def test_fits_of_different_inputs_made_together_equal_fits_made_alone():
    inputs = fit_inputs(fit("position", "gaussian", "shared"), MODEL, None, 0)
    target = impulse.targets(impulse.offsets_ordered(8).view(2, 4, 2), 4, 4)
    rng = torch.Generator().manual_seed(0)
    q, k = torch.rand(2, 4, 32, 8, generator=rng), torch.rand(2, 4, 8, 32, generator=rng)
    together = impulse.fit_adam_from(inputs, target, q, k, 0.1, 50, 1e-3, 10)
    for i in range(2):
        alone = impulse.fit_adam_from(inputs[i, 0], target[i], q[i], k[i], 0.1, 50, 1e-3, 10)
        torch.testing.assert_close(together[0][i], alone[0], rtol=0, atol=5e-5)
        torch.testing.assert_close(together[2][:, i], alone[2])
        maps = impulse.attention_map(inputs, *together[:2], 0.1)
        torch.testing.assert_close(
            maps[i], impulse.attention_map(inputs[i, 0], *alone[:2], 0.1), rtol=0, atol=1e-5
        )
