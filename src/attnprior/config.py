"""Settings as dataclasses: one per registry of `params.yaml`, without defaults.

`workflow/schemas/params.schema.yaml` describes and bounds every key; `attnprior.workflow.params`
checks a whole file. A stage gets only its own entries, so it builds only what it declares.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from attnprior.errors import UserError, nearest
from attnprior.recipe_keys import check_recipe, merged
from attnprior.recipes import Augment, ColorJitter, Erasing, RandAugment, Recipe

T = TypeVar("T")


@dataclass(frozen=True)
class Compute:
    device: str  # cpu | cuda
    torch_threads: int  # changes float sums, hence a parameter


@dataclass(frozen=True)
class Resize:
    """How images of any size become one square size."""

    size: int  # pixels of a side
    crop: str  # center: shorter side to `size`, then the middle; none: both sides to `size`


@dataclass(frozen=True)
class Dataset:
    """Which keys an entry has depends on its source: `attnprior.data.rules`."""

    source: str
    train: int | None  # a class-balanced subset of what val and test leave; None: all
    val: int | None  # images cut from the training part for monitoring; None: the source's own part
    test: int | None  # images held out, measured once; None: the source's own part
    split_seed: int
    path: str | None = None  # a local archive or folder; None: download
    resize: Resize | None = None  # None: as they are
    resident_limit: int | None = None  # MiB; parts of larger sets are read batch by batch
    channels: int | None = None  # folder only: 1 (grey) or 3 (RGB)
    skip_bad: bool | None = None  # folder only: leave out files that are no readable image


class _Patched:
    """What follows from the sizes of images and patches."""

    image_size: int
    patch_size: int

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        return self.grid**2


@dataclass(frozen=True)
class Model(_Patched):
    """A Vision Transformer."""

    kind: str  # vit
    image_size: int
    in_chans: int
    num_classes: int
    patch_size: int
    patch_norm: bool  # LayerNorm before and after the patch projection (Simple ViT)
    embed_dim: int
    depth: int
    num_heads: int
    mlp_ratio: float
    attention: str  # qk | free: maps of queries and keys of the tokens, or of free Q and K (Model III)
    value: bool  # False: the values are the normalised tokens themselves
    qkv_bias: bool
    proj_bias: bool
    logit_scale: float | None  # factor of the logits; None: head_dim^-0.5
    norm_eps: float
    pos_embed: str  # sincos2d (MAE) | sincos2d_simple (Simple ViT) | learned | identity | rope | none
    pos_at: str  # input | qk | none: added to the tokens once, or in the queries and keys of every layer
    alpha: float  # share of the content where content and position are blended; see models/checks.py
    cls_token: bool
    pool: str  # mean | mean_fc_norm | cls
    weight_init: str  # torch | trunc_normal

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def scale(self) -> float:
        """Factor of the attention logits, where no impulse fit brings its own."""
        return self.head_dim**-0.5 if self.logit_scale is None else self.logit_scale


@dataclass(frozen=True)
class ConvMixer(_Patched):
    """A ConvMixer (arXiv 2201.09792): depthwise filters mix space, 1x1 convolutions mix channels."""

    kind: str  # convmixer
    image_size: int
    in_chans: int
    num_classes: int
    patch_size: int
    embed_dim: int
    depth: int
    kernel_size: int  # odd
    gelu_after_spatial: bool  # the published network has it, the released code of arXiv 2401.12511 not
    norm_eps: float  # of every BatchNorm


AnyModel = Model | ConvMixer


@dataclass(frozen=True)
class Decoder:
    embed_dim: int
    depth: int
    num_heads: int
    mlp_ratio: float


@dataclass(frozen=True)
class Probe:
    """Linear probe of frozen features: L2-regularised softmax regression, solved by L-BFGS."""

    labels: int
    weight_decay: float
    steps: int


@dataclass(frozen=True)
class Teacher:
    source: str  # mae | random | student | file
    model: str
    probe: Probe
    recipe: str | None = None  # mae only
    mask_ratio: float | None = None  # mae only
    norm_pix_loss: bool | None = None  # mae only
    decoder: Decoder | None = None  # mae only
    masking: str | None = None  # mae only: random | block | grid
    student: str | None = None  # student only: whose trained weights of the same seed it has
    path: str | None = None  # file only
    format: str | None = None  # file only: attnprior | timm
    dataset: str | None = None  # what it is made on; None: the data set of the arm that uses it


@dataclass(frozen=True)
class Inputs:
    """What a fit takes as the input of queries and keys (pseudo-inputs of arXiv 2404.01139)."""

    first: str  # layer 1: position | uniform | gaussian | position_uniform | position_gaussian
    rest: str  # all other layers


@dataclass(frozen=True)
class Fit:
    model: str
    filter_size: int
    offsets: str  # random | ordered: drawn per layer and head, or the fixed order of arXiv 2505.19985
    solver: str  # adam (arXiv 2401.12511) | svd (arXiv 2505.19985)
    layers: str  # each | shared: a fit per layer, or one for all layers of the same input
    logit_scale: float | None  # gamma: the factor of the logits, kept in the student; None: the model's
    steps: int | None = None  # adam only
    lr: float | None = None  # adam only
    norm_every: int | None = None  # adam only; 0 means no weight normalisation
    signal: float | None = None  # svd only
    noise: float | None = None  # svd only
    norm: float | None = None  # svd only: Frobenius norm of each head's Q and K
    value_norm: float | None = None  # svd only: factor of mimetic values and output map; 0 leaves them
    inputs: Inputs | None = None  # models with queries and keys of tokens only
    position_norm: float | None = None  # learned position codes only: their factor at the start


@dataclass(frozen=True)
class Init:
    source: str  # random | mimetic | mimetic_reduced | impulse | teacher | filters
    fit: str | None = None  # impulse only
    teacher: str | None = None  # teacher only: fine-tuning
    value: bool | None = None  # mimetic only: V and projection, too
    kind: str | None = None  # filters only; see init/filters.py
    heads: int | None = None  # filters only: number of distinct filters
    entries: int | None = None  # filters of kind box only: entries that are not 0
    variance: float | None = None  # filters of kind gauss only: of the bell, in square pixels
    squared_norm: float | None = None  # filters but random, learned and softmax: its mean over filters


@dataclass(frozen=True)
class Transfer:
    """What a student takes from a teacher (arXiv 2411.09702); layers and heads are numbered from 0."""

    method: str  # none | copy | distil | distil_features
    teacher: str | None = None
    what: str | None = None  # copy, distil: map | q | k | v | qk | qv | kv
    layers: dict[str, Any] | None = None  # {first: n} | {last: n} | {list: [...]}
    heads: str | dict[str, Any] | None = None  # copy, distil: all | {first: n} | {list: [...]}
    class_token: bool | None = None  # with a class token: does it take part
    maps: str | None = None  # copy, distil: same_image | other_image | mean_images | mean_queries
    weight: float | dict[str, Any] | None = None  # distil, distil_features: lambda, on the sum over layers


@dataclass(frozen=True)
class Student:
    model: str
    init: Init
    transfer: Transfer
    recipe: str
    overrides: dict[str, Any]  # recipe keys that differ for this student
    labels: int
    permute_labels: bool  # control: the training labels are shuffled once, val and test stay true
    # none | spatial (Q and K of a ViT, filters and bias of a ConvMixer) | encoder (all but the head)
    freeze: str


@dataclass(frozen=True)
class Evaluation:
    ece_bins: int


@dataclass(frozen=True)
class Panel:
    title: str
    baseline: str  # the arm every other one is compared with
    arms: list[str]
    controls: list[str]  # shown below the arms


@dataclass(frozen=True)
class Paper:
    """Published values beside a study's; keys as in attnprior.published."""

    table: str
    differs: str | None  # from the paper's setting; None: in nothing
    values: dict[str, dict[str, str]]  # data set -> student -> key
    stated: list[str]  # keys shown without one of ours


@dataclass(frozen=True)
class Scaled:
    """How a study was shrunk: see attnprior.workflow.scaled."""

    of: str
    images: int
    epochs: str  # such as "2 of 200"
    steps: int
    seeds: str  # such as "1 of 5"


@dataclass(frozen=True)
class Study:
    title: str
    datasets: list[str]
    seeds: list[int]
    teacher_seed: int | None  # None: student seed k uses teacher and fit seed k; a number: one for all
    confidence: float  # of every interval
    panels: dict[str, Panel]
    paper: Paper | None = None
    scaled: Scaled | None = None


NESTED: dict[str, type] = {
    "resize": Resize,
    "inputs": Inputs,
    "probe": Probe,
    "decoder": Decoder,
    "init": Init,
    "transfer": Transfer,
    "augment": Augment,
    "randaugment": RandAugment,
    "color_jitter": ColorJitter,
    "erasing": Erasing,
    "paper": Paper,
    "scaled": Scaled,
}


def build(cls: type[T], values: dict, where: str) -> T:
    """Return `cls` made of `values`, a mapping taken from `params.yaml` at the dotted key `where`.

    Raises:
        UserError: a key is unknown or missing.
    """
    if cls is Model and values.get("kind") == "convmixer":
        raise UserError(
            f"params.yaml: {where} is a convmixer, which has no attention; use a model of kind vit"
        )
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise UserError(
                f"params.yaml: unknown key {where}.{key}{nearest(key, known)}; allowed: {', '.join(known)}"
            )
    required = [k for k, f in known.items() if f.default is not None]
    for key in required:
        if key not in values:
            raise UserError(
                f"params.yaml: missing key {where}.{key}; see workflow/schemas/params.schema.yaml"
            )
    if cls is Recipe:
        check_recipe(values, where)
    made = {
        k: build(NESTED[k], v, f"{where}.{k}") if k in NESTED and isinstance(v, dict) else v
        for k, v in values.items()
    }
    if cls in (Recipe, Augment, Erasing):  # pairs of numbers
        made = {k: tuple(v) if isinstance(v, list) else v for k, v in made.items()}
    return cls(**made)


def build_model(values: dict, where: str) -> AnyModel:
    """Return the model of either kind made of `values`, taken from `params.yaml` at the dotted key `where`.

    Raises:
        UserError: its kind is unknown, or a key is unknown or missing.
    """
    kinds: dict[str, type[AnyModel]] = {"vit": Model, "convmixer": ConvMixer}
    kind = values.get("kind")
    if kind not in kinds:
        raise UserError(f"params.yaml: {where}.kind is {kind!r}; allowed: {', '.join(kinds)}")
    return build(kinds[kind], values, where)


def build_study(values: dict, where: str) -> Study:
    """Return the study made of `values`, taken from `params.yaml` at the dotted key `where`.

    Raises:
        UserError: a key is unknown or missing.
    """
    study = build(Study, values, where)
    panels = {k: build(Panel, v, f"{where}.panels.{k}") for k, v in values["panels"].items()}
    return replace(study, panels=panels)


def recipe_of(student: Student, recipe: dict, where: str) -> Recipe:
    """Return a student's recipe with its overrides applied, key by key in nested mappings, too.

    Raises:
        UserError: an override names no recipe key, or the result has a key too few or too many.
    """
    values = merged(recipe, student.overrides, f"{where}.overrides")
    check_recipe(values, f"{where}.overrides")
    return build(Recipe, values, f"recipes.{student.recipe}")
