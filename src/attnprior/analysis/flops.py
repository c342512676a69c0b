"""Operations of trainings and fits by formula, before anything runs; imports no torch.

The convention is that of `attnprior.train.flops`, which counts a real step: matrix products only, a
multiply-add is 2, and training has one more product of the same size for each operand that needs a gradient.
"""

from dataclasses import asdict, dataclass, replace

from attnprior.config import AnyModel, ConvMixer, Fit, Init, Model, Recipe, Student, Teacher, Transfer
from attnprior.models.checks import visible_patches
from attnprior.selection import head_numbers, layer_pairs


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


@dataclass(frozen=True)
class Copying:
    """What the blocks of a student copy: `transfer`, and the model of the teacher that gives it."""

    transfer: Transfer
    teacher: Model

    def layers(self, student: Model) -> list[tuple[int, int]]:
        assert self.transfer.layers is not None
        return layer_pairs(self.transfer.layers, student.depth, self.teacher.depth)

    def heads(self, student: Model) -> int:
        return len(head_numbers(self.transfer.heads or "all", student.num_heads))

    def own_tokens(self, student: Model) -> int:
        """Tokens in front that take no part."""
        return int(student.cls_token and self.transfer.class_token is False)


def values(m: Model, step: Step, tokens: int) -> float:
    """Return the operations per image of the values, 0 where the tokens themselves are the values."""
    return step.product(tokens * m.embed_dim**2, 2) if m.value else 0.0


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
    copying: Copying | None = None,
    shared: bool = True,
    trained: bool = True,
) -> float:
    """Return operations per image of one block, which may take a part of its attention from a teacher."""
    d = m.embed_dim
    hidden = round(d * m.mlp_ratio)
    linear = step.product(tokens * (d**2 + 2 * d * hidden), 2)  # output map, both of the MLP
    heads = copying.heads(m) if copying else 0
    own = values(m, step, tokens) + queries_keys(m, step, tokens, shared, trained)
    own += attention(m, step, tokens, shared and copying is None, trained)
    linear += own * (m.num_heads - heads) / m.num_heads
    return linear + (copied_heads(m, step, tokens, copying, shared) if copying else 0)


def copied_heads(m: Model, step: Step, tokens: int, copying: Copying, shared: bool) -> float:
    """Return the operations per image of those heads of a block in which something is copied."""
    heads, front, what = copying.heads(m), copying.own_tokens(m), copying.transfer.what
    part, square = heads / m.num_heads, tokens**2
    width, given = heads * m.head_dim, heads * copying.teacher.head_dim

    def own(name: str, rows: int) -> float:
        if name == "v":
            return part * values(m, step, rows)
        return part * queries_keys(m, step, rows, shared) / 2

    if what == "map":
        map_of_teacher = step.product((tokens - front) ** 2 * given, 0)
        if front == 0:
            return own("v", tokens) + map_of_teacher + step.product(square * width, 1)
        own_map = own("q", tokens) + own("k", tokens) + step.product(square * width, 2)
        return own("v", tokens) + map_of_teacher + own_map + step.product(square * width, 2)
    assert what is not None
    total, gradient = 0.0, {}
    for name in "qkv":
        rows = front if name in what else tokens
        total += own(name, rows) if rows else 0
        gradient[name] = int(rows > 0)
    logits = gradient["q"] + gradient["k"]
    return (
        total
        + step.product(square * width, logits)
        + step.product(square * width, gradient["v"] + int(logits > 0))
    )


def tokens_of(m: Model) -> int:
    return m.num_patches + int(m.cls_token)


def forward(m: Model, step: Step, copying: Copying | None = None, trained: bool = True) -> float:
    """Return the operations per image of a ViT, whose blocks may take a part of their attention elsewhere.

    `trained`: its own queries and keys are.
    """
    tokens = tokens_of(m)
    layers = len(copying.layers(m)) if copying else 0
    blocks = layers * block(m, step, tokens, copying=copying)
    blocks += (m.depth - layers) * block(m, step, tokens, trained=trained)
    return embed(m, step, m.num_patches) + blocks + step.product(m.embed_dim * m.num_classes, 2)


def probe(m: Model, step: Step) -> float:
    """Return the operations per image of a ViT of which only the head is trained."""
    frozen = forward(replace(m, num_classes=0), Step(step.images, train=False))
    return frozen + step.product(m.embed_dim * m.num_classes, 1)


def mixer(m: ConvMixer, step: Step, init: Init, trained: bool) -> float:
    """Return the operations per image of a ConvMixer; `trained`: its filters are."""
    n, d = m.num_patches, m.embed_dim
    entries = n if init.kind in ("perm", "fullperm") else m.kernel_size**2
    spatial = step.product(n * d * entries, 1 + trained)
    stem = step.product(n * m.patch_size**2 * m.in_chans * d, 1)
    return stem + m.depth * (spatial + step.product(n * d**2, 2)) + step.product(d * m.num_classes, 2)


def teacher_parts(given: Copying, student: Model, step: Step) -> float:
    """Return the operations per image of a frozen teacher, up to the last thing that it gives."""
    m, frozen, tokens = given.teacher, Step(step.images, train=False), tokens_of(given.teacher)
    last = max(t for _, t in given.layers(student))
    start = embed(m, frozen, m.num_patches) + last * block(m, frozen, tokens)
    if given.transfer.method == "distil_features":
        return start + block(m, frozen, tokens)
    what = given.transfer.what or ""
    factors = 2 if what == "map" else len(set(what) & {"q", "k"})
    taken = values(m, frozen, tokens) if "v" in what else 0
    return start + factors * queries_keys(m, frozen, tokens, shared=True) / 2 + taken


def distil(given: Copying, student: Model, step: Step) -> float:
    """Return the operations per image of the loss on maps and of the logged divergence from it."""
    if given.transfer.what != "map":
        return 0.0  # a squared error has no products
    square, no_gradient = (tokens_of(student) - given.own_tokens(student)) ** 2, Step(step.images, False)
    heads = given.heads(student)
    own, other = square * heads * student.head_dim, square * heads * given.teacher.head_dim
    # The loss has both networks' logits, the divergence the loss once more and the teacher's logits again.
    once = step.product(own, 2) + no_gradient.product(own + 3 * other, 0)
    return len(given.layers(student)) * once


def student_flops(student: Student, model: AnyModel, recipe: Recipe, teacher: Model | None) -> float:
    """Return the operations of training a student; `teacher` is the model that it transfers from, if any."""
    step = Step(min(recipe.batch_size, student.labels), train=True)
    copying, extra, trained = None, 0.0, student.freeze == "none"
    if isinstance(model, ConvMixer):
        return mixer(model, step, student.init, trained) * student.labels * recipe.epochs
    if student.freeze == "encoder":
        return probe(model, step) * student.labels * recipe.epochs
    if student.transfer.method != "none":
        assert teacher is not None
        given = Copying(student.transfer, teacher)
        extra = teacher_parts(given, model, step)
        if student.transfer.method == "copy":
            copying = given
        else:
            extra += distil(given, model, step)
    return (forward(model, step, copying, trained) + extra) * student.labels * recipe.epochs


def evaluation(student: Student, model: AnyModel) -> float:
    """Return the operations of a student's pass for one image, as if nothing were copied."""
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
    """Return the operations of making a teacher: none where nothing is trained for it."""
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
