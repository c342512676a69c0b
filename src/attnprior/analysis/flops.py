"""Operations of trainings and fits by formula, before anything runs; imports no torch.

The convention is that of `attnprior.train.flops`, which counts a real step: matrix products only, a
multiply-add is 2, and training has one more product of the same size for each operand that needs a gradient.
"""

from dataclasses import asdict, dataclass, replace

from attnprior.config import Fit, Model, Recipe, Student, Teacher
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


def queries_keys(m: Model, step: Step, tokens: int, shared: bool) -> float:
    """Return the operations per image of the products that give queries and keys.

    `shared`: alpha is 0 and all images have one position code, so one product serves the batch.
    """
    weights = 2 * m.embed_dim**2
    if m.pos_at == "qk" and m.alpha == 0:
        own = step.product(tokens * weights, 2 if m.pos_embed == "learned" else 1)
        return own / step.images if shared else own
    return step.product(tokens * weights, 2)


def block(m: Model, step: Step, tokens: int, *, copied_dim: int | None = None, shared: bool = True) -> float:
    """Return operations per image of one block; `copied_dim` is the width of a teacher whose map it has."""
    d, square = m.embed_dim, tokens**2
    hidden = round(d * m.mlp_ratio)
    linear = step.product(tokens * (2 * d**2 + 2 * d * hidden), 2)  # values, output map, both of the MLP
    if copied_dim is None:
        return linear + queries_keys(m, step, tokens, shared) + step.product(2 * square * d, 2)
    return linear + step.product(square * copied_dim, 0) + step.product(square * d, 1)


def tokens_of(m: Model) -> int:
    return m.num_patches + int(m.cls_token)


def forward(m: Model, step: Step, copied: tuple[int, int] = (0, 0)) -> float:
    """Return the operations per image of a ViT; `copied` is (layers, teacher's width) of foreign maps."""
    tokens, (layers, dim) = tokens_of(m), copied
    blocks = layers * block(m, step, tokens, copied_dim=dim) + (m.depth - layers) * block(m, step, tokens)
    return embed(m, step, m.num_patches) + blocks + step.product(m.embed_dim * m.num_classes, 2)


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


def student_flops(student: Student, model: Model, recipe: Recipe, teacher: Model | None) -> float:
    """Return the operations of training a student; `teacher` is the model that maps come from, if any."""
    step = Step(min(recipe.batch_size, student.labels), train=True)
    transfer, copied, extra = student.transfer, (0, 0), 0.0
    if transfer.method != "none":
        assert teacher is not None and transfer.layers is not None
        extra = teacher_maps(teacher, step, transfer.layers)
        if transfer.method == "copy":
            copied = (transfer.layers, teacher.embed_dim)
        else:
            extra += distil(model, teacher, step, transfer.layers)
    return (forward(model, step, copied) + extra) * student.labels * recipe.epochs


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
    return replace(model, **sizes, pos_at="input", alpha=1.0, qkv_bias=True, proj_bias=True)


def teacher_flops(teacher: Teacher, model: Model, recipe: Recipe | None, images: int) -> float:
    """Return the operations of making a teacher: none for the control with random weights."""
    if teacher.source != "mae":
        return 0.0
    assert recipe is not None
    return mae_flops(teacher, model, recipe, images)


def fit_flops(fit: Fit, model: Model) -> float:
    """Return the operations of an impulse fit (of `svd` at most: a position code may have low rank)."""
    n, d, r = model.num_patches, model.embed_dim, model.head_dim
    maps = model.depth * model.num_heads
    if fit.solver == "svd":
        return 2.0 * d * min(r, n) * n + maps * 2.0 * (d * n * n + d * n * d)  # P^+, then P^+ G P^+T
    assert fit.steps is not None
    of_map = 2 * n * d * r + n * n * r + 2 * n * n * r + 2 * n * d * r  # Q and K, map, its gradients, by P
    return 2.0 * of_map * maps * fit.steps
