from dataclasses import replace

import pytest

from attnprior.config import Transfer
from attnprior.errors import UserError
from attnprior.models.transfer_checks import check_freeze, validate_transfer
from tests.oracle import MODEL, STANDARD

COPY = Transfer("copy", "t", "map", {"first": 3}, "all", None, "same_image")
DISTIL = replace(COPY, method="distil", weight=3.0)
FEATURES = Transfer("distil_features", "t", layers={"last": 1}, weight=1.0)
NO_TOKEN = replace(STANDARD, cls_token=False)


@pytest.mark.parametrize("good", [COPY, DISTIL, FEATURES, Transfer("none")])
def test_a_whole_transfer_is_accepted(good):
    validate_transfer(good, MODEL, MODEL, "students.s")


@pytest.mark.parametrize(
    ("transfer", "student", "teacher"),
    [
        (COPY, replace(MODEL, embed_dim=64), MODEL),  # maps have no width
        (replace(COPY, heads={"first": 2}), replace(MODEL, num_heads=2), MODEL),
        (replace(COPY, layers={"last": 2}), replace(MODEL, depth=2), MODEL),
        (replace(COPY, class_token=False), STANDARD, NO_TOKEN),
        (replace(COPY, class_token=True), STANDARD, STANDARD),
        (replace(DISTIL, weight={"schedule": "cosine", "from": 3.0, "to": 0.0}), MODEL, MODEL),
        (FEATURES, replace(MODEL, num_heads=2), MODEL),
    ],
)
def test_what_fits_together_is_accepted(transfer, student, teacher):
    validate_transfer(transfer, student, teacher, "students.s")


@pytest.mark.parametrize(
    ("transfer", "change", "said"),
    [
        (replace(COPY, method="copyy"), {}, "transfer.method: 'copyy'; allowed: none, copy"),
        (replace(COPY, weight=1.0), {}, "transfer.weight is not used by 'copy' (only by distil, distil_f"),
        (replace(FEATURES, what="map"), {}, "transfer.what is not used by 'distil_features'"),
        (replace(FEATURES, heads="all"), {}, "transfer.heads is not used by 'distil_features'"),
        (replace(FEATURES, maps="same_image"), {}, "transfer.maps is not used by 'distil_features'"),
        (Transfer("none", class_token=True), {}, "transfer.class_token is not used by 'none'"),
        (Transfer("none", teacher="t"), {}, "transfer.teacher is not used by 'none'"),
        (replace(DISTIL, weight=None), {}, "missing key students.s.transfer.weight, needed by 'distil'"),
        (replace(COPY, heads=None), {}, "missing key students.s.transfer.heads"),
        (replace(COPY, what="map", maps="own"), {}, "transfer.maps: 'own'"),
        (replace(COPY, what="qqq"), {}, "transfer.what: 'qqq'"),
        (replace(COPY, what="q", maps="mean_images"), {}, "only maps are averaged"),
        (replace(COPY, layers={"first": 0}), {}, "transfer.layers.first: 0"),
        (replace(COPY, layers={"first": 4}), {}, "transfer.layers.first: 4 does not work; use 1 to 3"),
        (replace(COPY, layers={"last": 3}), {"depth": 2}, "use 1 to 2"),
        (replace(COPY, layers={}), {}, "exactly one of first, last, list"),
        (replace(COPY, layers={"list": [0, 0]}), {}, "each once and rising"),
        (replace(COPY, layers={"list": [3]}), {}, "list some of 0 to 2"),
        (replace(COPY, heads={"last": 1}), {}, "exactly one of first, list"),
        (replace(COPY, heads={"list": [1, 4]}), {}, "list some of 0 to 3"),
        (replace(COPY, heads="some"), {}, "use all, {first: n}"),
        (COPY, {"num_heads": 2}, "num_heads 2 and the student's 4"),
        (COPY, {"image_size": 12}, "num_patches 36 and the student's 16"),
        (COPY, {"cls_token": True}, "missing key students.s.transfer.class_token"),
        (replace(COPY, class_token=True), {"cls_token": True}, "set class_token: false"),
        (replace(COPY, class_token=True), {}, "neither model has a class token"),
        (replace(COPY, what="q"), {"embed_dim": 64}, "'q' needs heads of one width"),
        (replace(DISTIL, what="kv"), {"embed_dim": 64}, "head_dim 16 and the student's 8"),
        (FEATURES, {"embed_dim": 64}, "embed_dim 64 and the student's 32; features need one width"),
        (replace(DISTIL, weight={"from": 1.0, "to": 2.0}), {}, "give a number, or schedule, from and to"),
        (
            replace(DISTIL, weight={"schedule": "constant", "from": 1.0, "to": 2.0}),
            {},
            "weight.schedule: 'constant'",
        ),
        (
            replace(DISTIL, weight={"schedule": "linear", "from": 1.0, "to": 1.0}),
            {},
            "write weight as one number",
        ),
    ],
)
def test_each_misuse_is_one_line_that_names_the_key(transfer, change, said):
    with pytest.raises(UserError) as error:
        validate_transfer(transfer, MODEL, replace(MODEL, **change), "students.s")
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "student", "idle"),
    [
        ({}, MODEL, True),
        ({"what": "qk"}, MODEL, True),
        ({"layers": {"last": 3}, "heads": {"first": 4}}, MODEL, True),
        ({"class_token": True}, STANDARD, True),
        ({"class_token": False}, STANDARD, False),  # the token's own row of each map
        ({"what": "q"}, MODEL, False),
        ({"layers": {"first": 2}}, MODEL, False),
        ({"heads": {"list": [0, 2]}}, MODEL, False),
        ({"method": "distil_features"}, MODEL, False),
    ],
)
def test_freezing_queries_and_keys_that_no_layer_uses_is_refused(change, student, idle):
    layers = {"first": student.depth}
    transfer = replace(COPY, **{"layers": layers, **change})
    check_freeze("none", transfer, student, "students.s")
    if not idle:
        check_freeze("spatial", transfer, student, "students.s")
        return
    with pytest.raises(UserError, match=r"students.s.freeze: 'spatial' does not work; all maps are copied"):
        check_freeze("spatial", transfer, student, "students.s")
