from dataclasses import replace

import pytest
import torch

from attnprior.errors import UserError
from attnprior.train.ema import Average
from attnprior.train.engine import Batch, train, training_flops
from attnprior.train.flops import count_flops
from attnprior.train.schedule import learning_rate
from attnprior.train.supervised import Supervised
from tests.train.small import AUGMENT, RECIPE, MemoryCheckpoint, NoCheckpoint, data, network


def run(path, recipe=RECIPE, seed=0, checkpoint=None, **more):
    net = network()
    rows = train(
        net.student,
        Supervised(net, recipe, seed),
        *data(),
        recipe,
        seed,
        checkpoint or NoCheckpoint(path),
        **more,
    )
    return net.student, rows


def same(a, b):
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_rows_count_epochs_and_steps_and_hold_the_last_rate(tmp_path):
    seen = []
    _, rows = run(tmp_path, on_row=seen.append)
    assert [r["epoch"] for r in rows] == [1, 2, 3] and [r["step"] for r in rows] == [3, 6, 9]
    assert [r["lr"] for r in rows] == [learning_rate(RECIPE, e + 2 / 3) for e in range(3)]
    assert list(rows[0]) == ["epoch", "step", "lr", "loss", "task_loss", "train_top1"] and seen == rows


def test_training_learns_and_is_a_function_of_its_seed(tmp_path):
    recipe = replace(RECIPE, epochs=12, augment=replace(AUGMENT, crop="none", padding=None))
    first, rows = run(tmp_path, recipe)
    torch.rand(5)  # the global random state does not matter
    second, again = run(tmp_path, recipe)
    assert same(first, second) and rows == again
    assert rows[-1]["loss"] < 0.75 * rows[0]["loss"]
    other, _ = run(tmp_path, recipe, seed=1)
    assert not same(first, other)


def test_epoch_means_are_weighted_by_the_images_of_a_batch(tmp_path):
    weights = []

    def objective(batch):
        weights.append(len(batch.labels))
        return {"loss": net.student(batch.images)[0].sum() * 0 + float(len(weights))}

    net = network()
    rows = train(net.student, objective, *data(), replace(RECIPE, epochs=1), 0, NoCheckpoint(tmp_path))
    assert weights == [8, 8, 4]
    assert rows[0]["loss"] == pytest.approx((8 * 1 + 8 * 2 + 4 * 3) / 20)


def test_evaluation_follows_each_epoch_in_evaluation_mode(tmp_path):
    net = network()

    def evaluate():
        assert not net.student.training
        return {"val_top1": 0.5}

    objective = Supervised(net, RECIPE, 0)
    rows = train(net.student, objective, *data(), RECIPE, 0, NoCheckpoint(tmp_path), evaluate=evaluate)
    assert [r["val_top1"] for r in rows] == [0.5] * 3


def assert_resumes(tmp_path, recipe, epoch):
    """A run resumed from the state after `epoch` ends with the weights and rows of the undisturbed one."""
    straight = MemoryCheckpoint(tmp_path)
    expected, rows = run(tmp_path, recipe, checkpoint=straight)
    resumed = NoCheckpoint(tmp_path)
    resumed.state = straight.saves[epoch - 1]
    found, again = run(tmp_path, recipe, checkpoint=resumed)
    assert same(expected, found) and rows == again


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_run_resumed_after_any_epoch_ends_as_the_undisturbed_one(tmp_path, epoch):
    recipe = replace(RECIPE, drop_path=0.3)
    assert_resumes(tmp_path, recipe, epoch)


def test_gradients_of_accumulated_batches_make_the_step_of_one_big_batch(tmp_path):
    still = replace(AUGMENT, crop="none", padding=None)
    one = replace(RECIPE, batch_size=8, augment=still)  # 8, 8 and 4 images a step
    many = replace(one, batch_size=3, accumulate=3)  # 3 + 3 + 3, ..., 2: other sizes, the same images
    parts = replace(one, batch_size=4, accumulate=2)
    big = replace(one, batch_size=9)
    found = {}
    for name, recipe in {"one": one, "parts": parts, "many": many, "big": big}.items():
        net = network()
        net.student.double()
        images, labels = data(shift=0)

        class Doubles:
            def __len__(self):
                return len(images)  # noqa: B023

            def batch(self, *at):
                return images.batch(*at).double()  # noqa: B023

        objective, checkpoint = Supervised(net, recipe, 0), NoCheckpoint(tmp_path)
        rows = train(net.student, objective, Doubles(), labels, recipe, 0, checkpoint)
        found[name] = net.student, rows
    for a, b in (("one", "parts"), ("many", "big")):
        for p, q in zip(found[a][0].parameters(), found[b][0].parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-11)
        assert [r["step"] for r in found[a][1]] == [r["step"] for r in found[b][1]] == [3, 6, 9]
        assert [r["loss"] for r in found[a][1]] == pytest.approx([r["loss"] for r in found[b][1]])


def test_the_mean_of_the_weights_is_evaluated_kept_and_does_not_change_the_training(tmp_path):
    plain, recipe = network(), replace(RECIPE, ema=0.8)
    trace = []

    def note(net):
        return lambda: trace.append([p.detach().clone() for p in net.student.parameters()]) or {}

    steps = []

    def objective(batch):
        steps.append([p.detach().clone() for p in plain.student.parameters()])
        return Supervised(plain, RECIPE, 0)(batch)

    train(plain.student, objective, *data(), RECIPE, 0, NoCheckpoint(tmp_path))
    steps.append([p.detach() for p in plain.student.parameters()])
    mean, expected = steps[0], []
    for number, weights in enumerate(steps[1:], 1):
        mean = [0.8 * m + 0.2 * w for m, w in zip(mean, weights, strict=True)]
        expected += [mean] if number % 3 == 0 else []
    net, checkpoint = network(), NoCheckpoint(tmp_path)
    train(net.student, Supervised(net, recipe, 0), *data(), recipe, 0, checkpoint, evaluate=note(net))
    trace.append(list(net.student.parameters()))
    for found, wanted in zip(trace, [*expected, expected[-1]], strict=True):
        for p, q in zip(found, wanted, strict=True):
            torch.testing.assert_close(p.detach(), q, rtol=1e-5, atol=1e-6)


def test_the_mean_takes_whole_numbers_over_and_follows_buffers():
    norm = torch.nn.BatchNorm1d(2)
    average = Average(norm, 0.9)
    norm(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    average.update()
    assert average.state_dict()["num_batches_tracked"] == 1
    torch.testing.assert_close(average.state_dict()["running_mean"], 0.1 * norm.running_mean)


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_resumed_training_with_all_that_has_a_state_ends_with_the_same_bytes(tmp_path, epoch):
    augment = replace(AUGMENT, flip=0.5, mixup=0.8, cutmix=1.0, mix_probability=0.7, mix_switch=0.5)
    changes = {"optimizer": "lars", "momentum": 0.9, "trust": 0.01, "accumulate": 2, "batch_size": 4}
    recipe = replace(RECIPE, ema=0.9, augment=augment, grad_clip=1.0, **changes)
    assert_resumes(tmp_path, recipe, epoch)


def test_clipping_bounds_the_gradient_and_zero_means_none(tmp_path):
    free, _ = run(tmp_path)
    loose, _ = run(tmp_path, replace(RECIPE, grad_clip=1e6))
    tight, _ = run(tmp_path, replace(RECIPE, grad_clip=1e-3))
    for a, b in zip(free.parameters(), loose.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert not all(torch.allclose(a, b) for a, b in zip(free.parameters(), tight.parameters(), strict=True))


def diverging(net, at, poison):
    calls = iter(range(1000))
    objective = Supervised(net, RECIPE, 0)

    def wrapped(batch):
        if (batch.epoch, batch.step) == at and next(calls) >= 0:
            poison()
        return objective(batch)

    return wrapped


def test_a_layer_that_overflows_is_named_with_step_rate_and_norm(tmp_path):
    net = network()

    def poison():
        net.student.blocks[1].mlp.fc1.weight.data.fill_(3e38)

    with pytest.raises(UserError) as caught:
        train(net.student, diverging(net, (1, 1), poison), *data(), RECIPE, 0, NoCheckpoint(tmp_path))
    text = str(caught.value)
    assert "step 4 (epoch 2)" in text and "output of blocks.1.mlp.fc1" in text and "gradient norm nan" in text
    assert f"learning rate {learning_rate(RECIPE, 1 + 1 / 3):.6g}" in text and "no checkpoint yet" in text
    assert "\n" not in text


def test_a_parameter_that_is_not_finite_is_named(tmp_path):
    net = network()

    def poison():
        net.student.head.bias.data[1] = float("nan")

    with pytest.raises(UserError, match=r"first not finite: parameter head.bias"):
        train(net.student, diverging(net, (0, 1), poison), *data(), RECIPE, 0, NoCheckpoint(tmp_path))


def test_a_gradient_that_is_not_finite_stops_before_the_update(tmp_path):
    net = network()
    before = [p.clone() for p in net.student.parameters()]

    def objective(batch):
        logits = net.student(batch.images)[0]
        return {"loss": (logits * 0).sum().sqrt()}  # 0, but its derivative is 0 * inf

    with pytest.raises(UserError, match=r"step 0 .*loss 0, gradient norm nan.*gradient of head.bias"):
        train(net.student, objective, *data(), RECIPE, 0, NoCheckpoint(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(before, net.student.parameters(), strict=True))


def test_the_message_names_the_checkpoint_that_is_kept(tmp_path):
    (tmp_path / "state.pt").write_text("")
    net = network()
    poison = lambda: net.student.head.bias.data.fill_(float("nan"))  # noqa: E731
    with pytest.raises(UserError, match=rf"last good checkpoint kept: {tmp_path}/state.pt"):
        train(net.student, diverging(net, (0, 0), poison), *data(), RECIPE, 0, NoCheckpoint(tmp_path))


def test_flops_of_a_training_are_those_of_all_its_images():
    net = network()
    images, labels = data()
    objective = Supervised(net, RECIPE, 0)
    index = torch.arange(1)
    one = count_flops(lambda: objective(Batch(images.batch(index, 0, 0, 0), labels[index], 0, 0)))
    assert training_flops(objective, images, labels, RECIPE, 0) == pytest.approx(one * 20 * 3)
