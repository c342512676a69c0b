from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attnprior import config
from attnprior.init.filters import build_convmixer, filter_matrix
from attnprior.models.convmixer import ConvMixer, SpatialMix
from tests.oracle import MIXER, Arrays, assert_close, random_images, randomised

RANDOM = config.Init("filters", kind="random", heads=16)


def recorded_network(recorded: Arrays) -> ConvMixer:
    """Return the network of a recording made with the authors' names."""
    s, w = recorded.settings, recorded.under("w/")
    model = config.ConvMixer(
        kind="convmixer",
        image_size=s["image"],
        in_chans=3,
        num_classes=s["classes"],
        patch_size=s["patch"],
        embed_dim=s["dim"],
        depth=s["depth"],
        kernel_size=s["k"],
        gelu_after_spatial=bool(s["linear_format"]),  # their convolution has none, their matrix has
        norm_eps=s["bn_eps"],
    )
    kind = s["init"] if s["init"] in ("softmax", "perm") else "random"
    heads = s["heads"] if s["heads"] > 0 else s["dim"]
    network = ConvMixer(model, kind, heads)
    names = {"input_embedding.0": "stem", "input_embedding.2": "stem_norm", "output.2": "head"}
    for layer in range(s["depth"]):
        theirs, ours = f"mixer.{layer}", f"blocks.{layer}"
        norm1 = 2 if kind == "perm" else 1
        names |= {f"{theirs}.0.fn.0": f"{ours}.spatial", f"{theirs}.0.fn.{norm1}": f"{ours}.norm1"}
        names |= {f"{theirs}.1.0": f"{ours}.mix", f"{theirs}.1.2": f"{ours}.norm2"}
    state = network.state_dict()
    for theirs, ours in names.items():
        for end in ("weight", "bias", "running_mean", "running_var"):
            if f"{theirs}.{end}" in w:
                state[f"{ours}.{end}"] = w[f"{theirs}.{end}"]
    for layer in range(s["depth"]):
        at = f"blocks.{layer}.spatial"
        state[f"{at}.weight"] = state[f"{at}.weight"][:heads]
        if kind != "perm":  # theirs does not assign matrices
            state[f"{at}.choice"] = recorded["in/choice_idx"][layer]
    network.load_state_dict(state)
    return network


@pytest.mark.parametrize("name", ["heads", "impulse", "perm", "softmax"])
def test_convmixer_reproduces_the_recorded_network(name):
    recorded = Arrays(f"convmixer_forward_{name}")
    network = recorded_network(recorded)
    assert_close(network.eval()(recorded["in/images"])[0], recorded["out/logits_eval"])
    assert_close(network.train()(recorded["in/images"])[0], recorded["out/logits_train"])


@pytest.mark.parametrize("name", ["heads", "softmax", "perm"])
def test_the_other_activation_would_be_noticed(name):
    recorded = Arrays(f"convmixer_forward_{name}")
    network = recorded_network(recorded).eval()
    for block in network.blocks:
        block.gelu = not block.gelu
    with pytest.raises(AssertionError, match="off by"):
        assert_close(network(recorded["in/images"])[0], recorded["out/logits_eval"])


@pytest.mark.parametrize("softmax", [False, True])
def test_the_matrix_path_equals_the_convolution(softmax):
    convolution = SpatialMix(6, 3, 4, softmax, None)
    matrix = SpatialMix(6, 3, 4, False, 25)
    randomised(convolution)
    with torch.no_grad():
        filters = convolution.weight
        if softmax:
            filters = filters.flatten(1).softmax(-1).view_as(filters)
        matrix.weight.copy_(filter_matrix(filters, 5))
        matrix.bias.copy_(convolution.bias)
    matrix.choice.copy_(convolution.choice)
    x = torch.randn(2, 6, 5, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(matrix(x), convolution(x))


def test_parameter_counts_of_the_published_network():
    model = replace(MIXER, image_size=32, in_chans=3, embed_dim=512, depth=6, kernel_size=5)
    with torch.device("meta"):
        network = ConvMixer(model, "random", 512)
    assert sum(p.numel() for p in network.parameters()) == 1_680_906
    network.freeze_filters()
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == 1_601_034


def test_recording_changes_nothing_and_has_the_promised_shapes():
    network, images = randomised(build_convmixer(MIXER, RANDOM, 0)).eval(), random_images()
    logits, recorded = network(images, record=("tokens", "features"))
    assert torch.equal(network(images)[0], logits)
    assert [tuple(t.shape) for t in recorded["tokens"]] == [(5, 16, 16)] * 2
    torch.testing.assert_close(recorded["tokens"][-1].mean(1), recorded["features"][0])


def test_channels_that_share_a_filter_share_its_gradient():
    network = build_convmixer(MIXER, replace(RANDOM, heads=2), 0)
    F.cross_entropy(network(random_images())[0], torch.arange(5)).backward()
    layer = network.spatial()[0]
    assert layer.weight.grad.shape == (2, 1, 3, 3)
    assert set(layer.choice.tolist()) == {0, 1}
