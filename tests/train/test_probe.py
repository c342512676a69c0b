import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprior.config import Probe
from attnprior.models.mae import encoder_config
from attnprior.models.vit import build_vit
from attnprior.train.probe import lbfgs, linear_probe, pooled_features
from tests.oracle import MODEL, STANDARD, random_images, randomised


def problem(seed=0, n=60, dim=5, classes=3):
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=rng)
    labels = torch.arange(n) % classes
    return centres[labels] + 0.8 * torch.randn(n, dim, generator=rng), labels


def test_the_probe_predicts_like_scikit_learns_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    (train, labels), (val, val_labels) = problem(0), problem(1, n=300)
    weight_decay = 0.1
    standard = (train - train.mean(0)) / train.std(0, correction=0)
    theirs = linear_model.LogisticRegression(C=1 / (weight_decay * len(train)), tol=1e-10, max_iter=1000)
    theirs.fit(standard.double().numpy(), labels.numpy())
    x = ((val - train.mean(0)) / train.std(0, correction=0)).double().numpy()
    expected = (theirs.predict(x) == val_labels.numpy()).mean()
    found = linear_probe(train, labels, val, val_labels, 3, Probe(60, weight_decay, 200))
    assert found == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 1000), st.floats(0.01, 1))
@settings(max_examples=15, deadline=None)
def test_lbfgs_reaches_a_point_without_gradient(seed, decay):
    x, labels = problem(seed)
    x = x.double()

    def objective(theta):
        weight = theta.view(3, 5)
        return torch.nn.functional.cross_entropy(x @ weight.T, labels) + decay / 2 * theta.square().sum()

    theta = lbfgs(objective, torch.zeros(15, dtype=torch.float64), 200).requires_grad_()
    gradient = torch.autograd.grad(objective(theta), theta)[0]
    assert gradient.abs().max() < 1e-6


def test_lbfgs_solves_a_quadratic():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(8, 8))
    matrix, target = torch.from_numpy(a @ a.T + np.eye(8)), torch.from_numpy(rng.normal(size=8))
    found = lbfgs(lambda x: x @ matrix @ x / 2 - x @ target, torch.zeros(8, dtype=torch.float64), 100)
    np.testing.assert_allclose(found, np.linalg.solve(matrix, target), atol=1e-7)


def test_scale_and_offset_of_features_do_not_matter_and_constant_ones_do_no_harm():
    (train, labels), (val, val_labels) = problem(0), problem(1)
    base = linear_probe(train, labels, val, val_labels, 3, Probe(60, 0.01, 100))
    spread = lambda x: torch.cat([x * 7 + 3, torch.full((len(x), 1), 2.0)], 1)  # noqa: E731
    assert linear_probe(spread(train), labels, spread(val), val_labels, 3, Probe(60, 0.01, 100)) == base


@pytest.mark.parametrize("model", [MODEL, STANDARD])
def test_features_are_the_mean_patch_token_after_the_norm(model):
    encoder = randomised(build_vit(encoder_config(model), 0)).eval()
    images = random_images(5)
    tokens = encoder.norm(encoder(images, record=("tokens",))[1]["tokens"][-1])
    expected = tokens[:, -16:].mean(1)
    torch.testing.assert_close(pooled_features(encoder, images, 2), expected.detach(), atol=1e-5, rtol=1e-5)
