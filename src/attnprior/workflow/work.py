"""What one job takes, from `params.yaml` alone: operations, memory and files; imports no torch."""

from dataclasses import dataclass, replace
from pathlib import Path

from attnprior import config
from attnprior.analysis import flops, sizes
from attnprior.data.rules import Numbers, known_numbers
from attnprior.models.checks import visible_patches
from attnprior.workflow import graph

MIB = 2**20
TORCH = ("pretrain_teacher", "fit_impulse", "train_student")
# Memory in MiB before any array: measured with PyTorch 2.14 on Linux, the others with what they import.
RESIDENT = {
    "fetch_dataset": 185,
    "evaluate": 37,
    "compare": 80,
    "draw": 117,
    "report": 45,
    "against_paper": 45,
}
RESIDENT |= dict.fromkeys((*TORCH, "extract_maps"), 546)
# Seconds of one 2.4 GHz core for what does no training; the last four for each arm.
SECONDS = {"fetch_dataset": 2.0, "evaluate": 0.1, "compare": 0.06}
SECONDS |= {"extract_maps": 0.05, "draw": 0.5, "report": 0.03, "against_paper": 0.01}
METADATA = 6_000  # bytes that Snakemake records of an output file
TRACKED = 45_000  # bytes of a job in MLflow's store
FORWARD = 0.3  # a block's forward pass starts so much of the operations of its training step
SOLVER_STEP = 0.25  # a step of the impulse fit starts a quarter of the operations of a block's training step


@dataclass(frozen=True)
class Work:
    """What one job takes."""

    rule: str
    flops: float = 0.0  # of training, as tables count them
    passes: float = 0.0  # operations beside: validation after each epoch, and predictions
    blocks: float = 0.0  # training steps of a single transformer block
    seconds: float = 0.0  # of one core, where nothing is trained
    memory: float = 0.0  # bytes, at the peak
    files: int = 0  # bytes that DVC versions
    outputs: int = 0  # number of these files
    logs: int = 0  # bytes
    checkpoint: int = 0  # bytes, while it runs
    known: bool = True  # False: the number of images is not known before the data set is there


def images_of(params: dict, dataset: str) -> Numbers | None:
    """Return the number of images of a data set, None if only fetching it can tell."""
    found = known_numbers(params["datasets"][dataset], f"datasets.{dataset}")
    path = Path(graph.data_file(dataset))
    if found is not None or not path.is_file():
        return found
    from safetensors import safe_open

    with safe_open(str(path), framework="numpy") as f:
        split = f.get_tensor("split")
    return Numbers(*(int((split == part).sum()) for part in range(3)))


def model_of(params: dict, name: str) -> config.Model:
    return config.build(config.Model, params["models"][name], f"models.{name}")


def any_model(params: dict, name: str) -> config.AnyModel:
    return config.build_model(params["models"][name], f"models.{name}")


def fetch_work(params: dict, dataset: str, model: config.AnyModel) -> Work:
    """Return the work of making a data file, its images as the model takes them."""
    images, path = images_of(params, dataset), Path(graph.data_file(dataset))
    count = images.all if images else 0
    size = count * (model.in_chans * model.image_size**2 + 2 * 8) + 1_000
    if path.is_file():
        size = path.stat().st_size
    memory = RESIDENT["fetch_dataset"] * MIB + 3 * size  # read, put together and written
    seconds = SECONDS["fetch_dataset"]
    return Work(
        "fetch_dataset",
        seconds=seconds,
        memory=memory,
        files=size + 2_400,
        outputs=2,
        logs=2_000,
        known=images is not None,
    )


def teacher_work(params: dict, dataset: str, name: str) -> Work:
    """Return the work of pre-training a teacher, or of drawing the control's random weights."""
    teacher = config.build(config.Teacher, params["teachers"][name], f"teachers.{name}")
    model = model_of(params, teacher.model)
    parameters = sizes.teacher_parameters(teacher, model)
    weights = sizes.tensors_file(parameters, sizes.tensors_in(model.depth))
    memory = RESIDENT["pretrain_teacher"] * MIB
    done = Work(
        "pretrain_teacher", memory=memory, files=weights + sizes.RECORD, outputs=4, logs=1_000, seconds=0.3
    )
    if teacher.source != "mae":
        return done
    assert teacher.recipe is not None and teacher.mask_ratio is not None and teacher.decoder is not None
    recipe = config.build(config.Recipe, params["recipes"][teacher.recipe], f"recipes.{teacher.recipe}")
    images, rows = images_of(params, dataset), recipe.epochs
    count = images.train if images else 0
    kept = visible_patches(model.num_patches, teacher.mask_ratio, f"teachers.{name}") + int(model.cls_token)
    batch = min(recipe.batch_size, count or recipe.batch_size)
    steps = recipe.epochs * -(-count // recipe.batch_size)
    pixels = (images.all if images else 0) * model.in_chans * model.image_size**2
    return replace(
        done,
        flops=flops.mae_flops(teacher, model, recipe, count) if count else 0.0,
        blocks=steps * (model.depth + teacher.decoder.depth),
        memory=sizes.shared_memory(
            memory + pixels + sizes.mae_memory(teacher, model, kept, batch), parameters, recipe
        ),
        files=done.files + rows * 50,
        logs=done.logs + rows * 200,
        checkpoint=12 * parameters,
        known=images is not None,
    )


def fit_work(params: dict, name: str) -> Work:
    """Return the work of an impulse fit."""
    fit = config.build(config.Fit, params["fits"][name], f"fits.{name}")
    model = model_of(params, fit.model)
    numbers = model.depth * (sizes.fit_weights(model) + (2 * model.embed_dim**2 if fit.value_norm else 0))
    weights = sizes.tensors_file(numbers, 3)
    return Work(
        "fit_impulse",
        flops=flops.fit_flops(fit, model),
        blocks=SOLVER_STEP * (fit.steps or 0),
        memory=RESIDENT["fit_impulse"] * MIB + sizes.fit_memory(fit, model),
        files=weights + sizes.RECORD + (fit.steps or 0) // 100 * 25,
        outputs=4,
        logs=3_000,
    )


def student_work(params: dict, dataset: str, name: str) -> Work:
    """Return the work of training a student and of its predictions for validation and test images."""
    student = config.build(config.Student, params["students"][name], f"students.{name}")
    model = any_model(params, student.model)
    recipe = config.recipe_of(student, params["recipes"][student.recipe], f"students.{name}")
    transfers, source = student.transfer.method, student.transfer.teacher
    other = model_of(params, params["teachers"][source]["model"]) if source else None
    layers, taught = 0, 0.0
    if other is not None and isinstance(model, config.Model):
        given = flops.Copying(student.transfer, other)
        layers = len(given.layers(model))
        taught = flops.teacher_parts(given, model, flops.Step(1, train=False))
    images = images_of(params, dataset)
    held_out = images.val + images.test if images else 0
    one = flops.evaluation(student, model)
    if transfers == "copy":
        one += taught
    looks = (images.val * recipe.epochs + held_out if images else 0) * one
    # A frozen teacher's block has no backward pass; the loss on its maps is as much again and more.
    extra = {"none": 0.0, "copy": FORWARD, "distil": 1.0, "distil_features": 0.4}[transfers]
    blocks = model.depth + layers * extra
    probes = student.freeze == "encoder"
    if probes:
        blocks = model.depth * FORWARD
    batch = min(recipe.batch_size, student.labels)
    parameters = sizes.student_parameters(model, student.init)
    pixels = (images.all if images else 0) * model.in_chans * model.image_size**2
    trained = parameters
    if isinstance(model, config.ConvMixer):
        memory = sizes.mixer_memory(model, student.init, batch)
    elif probes:
        memory, trained = sizes.probe_memory(model, batch), sizes.head_parameters(model)
    else:
        memory = sizes.student_memory(model, other, batch, transfers == "distil")
    weights = sizes.tensors_file(parameters, sizes.tensors_in(model.depth))
    return Work(
        "train_student",
        flops=flops.student_flops(student, model, recipe, other),
        passes=looks,
        blocks=blocks * recipe.epochs * -(-student.labels // recipe.batch_size),
        memory=sizes.shared_memory(RESIDENT["train_student"] * MIB + pixels + memory, parameters, recipe),
        files=weights
        + sizes.predictions_file(held_out, model.num_classes)
        + recipe.epochs * sizes.HISTORY_ROW
        + sizes.RECORD,
        outputs=4,
        logs=2_000 + recipe.epochs * (sizes.EVENT + sizes.HISTORY_ROW),
        checkpoint=4 * parameters + 8 * trained,
        known=images is not None,
    )


def study_work(rule: str, arms: int, runs: int) -> Work:
    """Return the work of a rule that makes results of a whole study."""
    files = (
        {"compare": 0.1, "extract_maps": 0.02, "draw": 0.45, "report": 0.45, "against_paper": 0.01}[rule]
        * sizes.PAGE_PER_ARM
        * arms
    )
    seconds = SECONDS[rule] * arms
    memory = RESIDENT[rule] * MIB
    return Work(rule, seconds=seconds, memory=memory, files=round(files) + 300 * runs, outputs=6, logs=9_000)


def evaluate_work() -> Work:
    memory = RESIDENT["evaluate"] * MIB
    return Work("evaluate", seconds=SECONDS["evaluate"], memory=memory, files=3_300, outputs=2, logs=2_500)
