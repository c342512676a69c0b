"""Parameters, memory and files of a job by formula, before anything runs; imports no torch.

Bytes throughout. Memory leaves out what the process needs with torch loaded and nothing computed.
"""

from dataclasses import replace

from attnprior.analysis.flops import decoder_model, fits_made, tokens_of
from attnprior.config import AnyModel, ConvMixer, Fit, Init, Model, Recipe, Teacher

STATE = 4 * 4  # bytes of a trained parameter: its weight, its gradient and Adam's two means, in float32
JSON_PER_TENSOR = 120  # bytes of a tensor's entry in a safetensors header
RECORD = 6_000  # bytes of a job's run.json: hashes of its inputs and of some forty source files
EVENT = 260  # bytes of a line of events.jsonl, and of its line in the text log together
HISTORY_ROW = 125
PAGE_PER_ARM = 165_000  # bytes of tables, figures (twice) and page of a study, per arm


def block_parameters(m: Model) -> int:
    """Return the parameters of one block."""
    d, hidden = m.embed_dim, round(m.embed_dim * m.mlp_ratio)
    free = 2 * m.num_patches * d if m.attention == "free" else 0
    maps = m.value + (0 if free else 2)  # of q, k, v
    attention = free + maps * (d**2 + d * m.qkv_bias) + d**2 + d * m.proj_bias
    return attention + 2 * d * hidden + hidden + d + 4 * d  # MLP, two norms


def vit_parameters(m: Model) -> int:
    """Return the parameters of a ViT; without classes (a teacher's encoder) there is no head."""
    d, pixels = m.embed_dim, m.patch_size**2 * m.in_chans
    ends = pixels * d + d + m.patch_norm * 2 * (pixels + d) + m.cls_token * d
    ends += (m.pos_embed == "learned") * tokens_of(m) * d
    return ends + m.depth * block_parameters(m) + 2 * d + head_parameters(m)


def head_parameters(m: Model) -> int:
    """Return the parameters of a ViT's head."""
    return m.num_classes * (m.embed_dim + 1)


def spatial_parameters(m: AnyModel, init: Init) -> int:
    """Return the parameters of the spatial layers: Q and K of a ViT, filters and bias of a ConvMixer."""
    if isinstance(m, ConvMixer):
        entries = m.num_patches**2 if init.kind in ("perm", "fullperm") else m.kernel_size**2
        return m.depth * ((init.heads or 0) * entries + m.embed_dim)
    if m.attention == "free":
        return m.depth * 2 * m.num_patches * m.embed_dim
    return m.depth * 2 * (m.embed_dim**2 + m.embed_dim * m.qkv_bias)


def student_parameters(m: AnyModel, init: Init) -> int:
    """Return the parameters of a student, frozen ones included."""
    if not isinstance(m, ConvMixer):
        return vit_parameters(m)
    d = m.embed_dim
    stem = m.patch_size**2 * m.in_chans * d + d + 2 * d
    mixing = m.depth * (2 * d + d**2 + d + 2 * d)  # norm, 1x1 convolution, norm
    return stem + spatial_parameters(m, init) + mixing + m.num_classes * (d + 1)


def decoder_parameters(model: Model, teacher: Teacher) -> int:
    """Return the parameters of a masked autoencoder's decoder."""
    own = decoder_model(model, teacher)
    d, pixels = own.embed_dim, model.patch_size**2 * model.in_chans
    return model.embed_dim * d + d + d + own.depth * block_parameters(own) + 2 * d + d * pixels + pixels


def teacher_parameters(teacher: Teacher, model: Model) -> int:
    """Return the parameters of a teacher: encoder without head, and the decoder if it has one."""
    encoder = vit_parameters(replace(model, num_classes=0))
    return encoder + (decoder_parameters(model, teacher) if teacher.decoder else 0)


def activations(m: Model, tokens: int, batch: int) -> int:
    """Return the bytes that a training step keeps for its backward pass, and the largest gradients beside.

    Per token and block: the input, two normalised copies, q, k, v, the attention's output, its projection and
    the sum (9 widths), and before and after the MLP's activation (2 hidden widths). Attention is fused.
    """
    per_token = 9 * m.embed_dim + 2 * round(m.embed_dim * m.mlp_ratio)
    return batch * tokens * (m.depth + 1) * per_token * 4


def mixer_memory(m: ConvMixer, init: Init, batch: int) -> int:
    """Return the working memory of training a ConvMixer: per channel, patch and block, nine numbers are kept.

    Those are inputs, outputs and normalised copies of both convolutions and of what lies between them.
    """
    kept = batch * m.num_patches * m.embed_dim * (9 * m.depth + 3) * 4
    return student_parameters(m, init) * STATE + kept


def student_memory(model: Model, teacher: Model | None, batch: int, distils: bool) -> int:
    """Return the working memory of training a student, with its frozen teacher if maps come from one."""
    own = vit_parameters(model) * STATE + activations(model, tokens_of(model), batch)
    if teacher is None:
        return own
    maps = batch * model.num_heads * tokens_of(model) ** 2 * 4 * model.depth
    return own + vit_parameters(teacher) * 4 + maps * (8 if distils else 0)  # maps, logs and gradients


def shared_memory(each: int, parameters: int, recipe: Recipe) -> int:
    """Return the memory of all processes of a recipe's training, `each` that of one which has all of it.

    Sharded, the state of the parameters is there once; beside it each process has the weights whole while
    the first evaluates, or the first has all that it saves.
    """
    processes = recipe.processes or 1
    if not recipe.sharded:
        return processes * each
    beside = max(4 * processes, STATE - 4)
    return processes * (each - parameters * STATE) + parameters * (STATE + beside)


def probe_memory(model: Model, batch: int) -> int:
    """Return the working memory of training a ViT's head alone: of its blocks, one at a time is in memory."""
    block = activations(replace(model, depth=0), tokens_of(model), batch)
    return vit_parameters(model) * 4 + head_parameters(model) * STATE + block


def mae_memory(teacher: Teacher, model: Model, kept: int, batch: int) -> int:
    """Return the working memory of pre-training a masked autoencoder of which `kept` tokens are visible."""
    both = activations(model, kept, batch) + activations(
        decoder_model(model, teacher), tokens_of(model), batch
    )
    return teacher_parameters(teacher, model) * STATE + both


def fit_memory(fit: Fit, model: Model) -> int:
    """Return the working memory of an impulse fit: maps of all layers and heads, Q, K and Adam's means."""
    maps = fits_made(fit, model) * model.num_heads * model.num_patches**2
    weights = fits_made(fit, model) * fit_weights(model)
    losses = 600 * (fit.steps or 0)  # a small tensor is kept for each step's loss
    return 4 * (6 * maps + 5 * weights) + losses


def fit_weights(model: Model) -> int:
    """Return the numbers in the Q and K of a layer."""
    return 2 * model.embed_dim * (model.num_patches if model.attention == "free" else model.embed_dim)


def tensors_file(numbers: int, tensors: int) -> int:
    """Return the size of a safetensors file of `numbers` float32 in `tensors` tensors."""
    return 4 * numbers + JSON_PER_TENSOR * tensors + 1_000


def tensors_in(depth: int) -> int:
    """Return about how many tensors a ViT of `depth` blocks has."""
    return 12 * depth + 8


def predictions_file(images: int, classes: int) -> int:
    """Return the size of the predictions: logits, and label, row and split of each image as int64."""
    return images * (4 * classes + 3 * 8) + 500
