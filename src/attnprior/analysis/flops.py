"""Operations of trainings and fits by formula, before anything runs; imports no torch.

The convention is that of `attnprior.train.flops`, which counts a real step: matrix products only, a
multiply-add is 2, and training has one more product of the same size for each operand that needs a gradient.
"""

from dataclasses import asdict, dataclass, replace

from attnprior.config import AnyModel, ConvMixer, Fit, Init, Model, Recipe, Student, Teacher
from attnprior.models.checks import visible_patches


@dataclass(frozen=True)
class Step:
    """How a pass is made: `images` in the batch, and whether gradients follow."""

    images: int
    train: bool

    def product(self, multiply_adds: float, gradients: int) -> float:
        """Return the operations of a product; `gradients` of its operands need one in training."""
        return 2 * multiply_adds * (1 + gradients * self.train)


def embed(m: Model, step: Step, patches: int) -> float:
    """Return the operations per image of the patch projection; its input needs a gradient below a norm."""
    return step.product(patches * m.patch_size**2 * m.in_chans * m.embed_dim, 2 if m.patch_norm else 1)


def one_map(m: Model) -> bool:
    """Return whether the map of a layer is the same for all images (Models II and III)."""
    return m.attention == "free" or (m.pos_at == "qk" and m.alpha == 0 and m.pos_embed != "rope")


def queries_keys(m: Model, step: Step, tokens: int, shared: bool, trained: bool = True) -> float:
    """Return the operations per image of the products that give queries and keys.

    `shared`: one product serves the batch where alpha is 0 and all images have one position code. `trained`:
    their weights are.
    """
    if m.attention == "free":
        return 0.0
    weights = 2 * m.embed_dim**2
    if one_map(m):
        own = step.product(tokens * weights, trained + (m.pos_embed == "learned"))
        return own / step.images if shared else own
    return step.product(tokens * weights, 1 + trained)


def attention(m: Model, step: Step, tokens: int, shared: bool, trained: bool) -> float:
    """Return the operations per image of the map and of its product with the values."""
    size = tokens**2 * m.embed_dim
    moving = trained or not one_map(m) or (m.attention == "qk" and m.pos_embed == "learned")
    logits = step.product(size, 2 * moving)
    return (logits / step.images if shared and one_map(m) else logits) + step.product(size, 1 + moving)


def block(
    m: Model,
    step: Step,
    tokens: int,
    *,
    copied_dim: int | None = None,
    shared: bool = True,
    trained: bool = True,
) -> float:
    """Return operations per image of one block; `copied_dim` is the width of a teacher whose map it has."""
    d, square = m.embed_dim, tokens**2
    hidden = round(d * m.mlp_ratio)
    maps = (1 + m.value) * d**2 + 2 * d * hidden  # values, output map, both of the MLP
    linear = step.product(tokens * maps, 2)
    if copied_dim is None:
        own = queries_keys(m, step, tokens, shared, trained)
        return linear + own + attention(m, step, tokens, shared, trained)
    return linear + step.product(square * copied_dim, 0) + step.product(square * d, 1)


def tokens_of(m: Model) -> int:
    return m.num_patches + int(m.cls_token)


def forward(m: Model, step: Step, copied: tuple[int, int] = (0, 0), trained: bool = True) -> float:
    """Return the operations per image of a ViT; `copied` is (layers, teacher's width) of foreign maps.

    `trained`: its own queries and keys are.
    """
    tokens, (layers, dim) = tokens_of(m), copied
    blocks = layers * block(m, step, tokens, copied_dim=dim)
    blocks += (m.depth - layers) * block(m, step, tokens, trained=trained)
    return embed(m, step, m.num_patches) + blocks + step.product(m.embed_dim * m.num_classes, 2)


def mixer(m: ConvMixer, step: Step, init: Init, trained: bool) -> float:
    """Return the operations per image of a ConvMixer; `trained`: its filters are."""
    n, d = m.num_patches, m.embed_dim
    entries = n if init.kind in ("perm", "fullperm") else m.kernel_size**2
    spatial = step.product(n * d * entries, 1 + trained)
    stem = step.product(n * m.patch_size**2 * m.in_chans * d, 1)
    return stem + m.depth * (spatial + step.product(n * d**2, 2)) + step.product(d * m.num_classes, 2)


def teacher_maps(m: Model, step: Step, layers: int) -> float:
    """Return the operations per image of a frozen teacher's queries and keys in its first `layers` blocks."""
    frozen, tokens = Step(step.images, train=False), tokens_of(m)
    blocks = (layers - 1) * block(m, frozen, tokens)
    return embed(m, frozen, m.num_patches) + blocks + queries_keys(m, frozen, tokens, shared=True)


def distil(student: Model, teacher: Model, step: Step, layers: int) -> float:
    """Return the operations per image of the attention loss and of the logged divergence from it."""
    square, no_gradient = tokens_of(student) ** 2, Step(step.images, train=False)
    own, other = square * student.embed_dim, square * teacher.embed_dim
    # The loss has both networks' logits, the divergence the loss once more and the teacher's logits again.
    return layers * (step.product(own, 2) + no_gradient.product(own + 3 * other, 0))


def student_flops(student: Student, model: AnyModel, recipe: Recipe, teacher: Model | None) -> float:
    """Return the operations of training a student; `teacher` is the model that maps come from, if any."""
    step = Step(min(recipe.batch_size, student.labels), train=True)
    transfer, copied, extra = student.transfer, (0, 0), 0.0
    trained = student.freeze == "none"
    if isinstance(model, ConvMixer):
        return mixer(model, step, student.init, trained) * student.labels * recipe.epochs
    if transfer.method != "none":
        assert teacher is not None and transfer.layers is not None
        extra = teacher_maps(teacher, step, transfer.layers)
        if transfer.method == "copy":
            copied = (transfer.layers, teacher.embed_dim)
        else:
            extra += distil(model, teacher, step, transfer.layers)
    return (forward(model, step, copied, trained) + extra) * student.labels * recipe.epochs


def evaluation(student: Student, model: AnyModel) -> float:
    """Return the operations of a student's pass for one image, as if no map were copied."""
    step = Step(1, train=False)
    return mixer(model, step, student.init, True) if isinstance(model, ConvMixer) else forward(model, step)


def mae_flops(teacher: Teacher, model: Model, recipe: Recipe, images: int) -> float:
    """Return the operations of pre-training a masked autoencoder on `images` images."""
    assert teacher.mask_ratio is not None and teacher.decoder is not None
    step, decoder, prefix = (
        Step(min(recipe.batch_size, images), train=True),
        teacher.decoder,
        int(model.cls_token),
    )
    kept = visible_patches(model.num_patches, teacher.mask_ratio, "teachers")
    encoder = embed(model, step, kept) + model.depth * block(model, step, kept + prefix, shared=False)
    own, tokens = decoder_model(model, teacher), tokens_of(model)
    pixels = model.patch_size**2 * model.in_chans
    ends = (kept + prefix) * model.embed_dim * decoder.embed_dim + tokens * decoder.embed_dim * pixels
    blocks = decoder.depth * block(own, step, tokens)
    return (encoder + step.product(ends, 2) + blocks) * images * recipe.epochs


def decoder_model(model: Model, teacher: Teacher) -> Model:
    """Return the decoder's blocks as a model: position code at the input, biases everywhere."""
    assert teacher.decoder is not None
    sizes = asdict(teacher.decoder)
    own = replace(model, **sizes, pos_at="input", alpha=1.0, attention="qk", value=True)
    return replace(own, qkv_bias=True, proj_bias=True)


def teacher_flops(teacher: Teacher, model: Model, recipe: Recipe | None, images: int) -> float:
    """Return the operations of making a teacher: none for the control with random weights."""
    if teacher.source != "mae":
        return 0.0
    assert recipe is not None
    return mae_flops(teacher, model, recipe, images)


def fit_flops(fit: Fit, model: Model) -> float:
    """Return the operations of an impulse fit (of `svd` at most: a position code may have low rank)."""
    n, r = model.num_patches, model.head_dim
    d = n if model.attention == "free" else model.embed_dim
    count = fits_made(fit, model)
    maps = count * model.num_heads
    if fit.solver == "svd":
        inputs = count if fit.inputs is not None and fit.inputs.first != fit.inputs.rest else 1
        return inputs * 2.0 * d * min(r, n) * n + maps * 2.0 * (d * n * n + d * n * d)  # P^+, then P^+ G P^+T
    assert fit.steps is not None
    of_map = 2 * n * d * r + n * n * r + 2 * n * n * r + 2 * n * d * r  # Q and K, map, its gradients, by P
    return 2.0 * of_map * maps * fit.steps


def fits_made(fit: Fit, model: Model) -> int:
    """Return how many fits are made: one a layer, or one for all layers of the same input."""
    if fit.layers == "each":
        return model.depth
    return 1 if fit.inputs is None or fit.inputs.first == fit.inputs.rest else 2
