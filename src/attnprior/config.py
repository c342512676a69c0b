"""Settings as dataclasses: one per registry of `params.yaml`, without defaults.

`workflow/schemas/params.schema.yaml` describes and bounds every key; `attnprior.workflow.params`
checks a whole file. A stage gets only its own entries, so it builds only what it declares.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from attnprior.errors import UserError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Compute:
    device: str  # cpu | cuda
    torch_threads: int  # changes float sums, hence a parameter


@dataclass(frozen=True)
class Dataset:
    source: str  # sklearn_digits
    val: int  # images cut from the training part for monitoring
    test: int  # images held out, measured once
    split_seed: int


@dataclass(frozen=True)
class Model:
    image_size: int
    in_chans: int
    num_classes: int
    patch_size: int
    patch_norm: bool  # LayerNorm before and after the patch projection (Simple ViT)
    embed_dim: int
    depth: int
    num_heads: int
    mlp_ratio: float
    qkv_bias: bool
    proj_bias: bool
    norm_eps: float
    pos_embed: str  # sincos2d (MAE) | sincos2d_simple (Simple ViT) | learned | identity | none
    pos_at: str  # input | qk | none: added to the tokens once, or blended into every layer's Q/K input
    alpha: float  # Q/K input is alpha * LN(x) + (1 - alpha) * P where pos_at is qk; 1 elsewhere
    cls_token: bool
    pool: str  # mean | mean_fc_norm | cls
    weight_init: str  # torch | trunc_normal

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.image_size // self.patch_size

    @property
    def num_patches(self) -> int:
        return self.grid**2

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads


@dataclass(frozen=True)
class Recipe:
    epochs: int
    batch_size: int
    lr: float  # peak
    min_lr: float  # at the last step
    warmup_epochs: float
    betas: tuple[float, float]
    weight_decay: float  # not applied to one-dimensional parameters, tokens and position codes
    grad_clip: float  # largest gradient norm; 0 means no clipping
    label_smoothing: float
    drop_path: float
    shift: int  # random translation in pixels, zero filled


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
    source: str  # mae | random
    model: str
    probe: Probe
    recipe: str | None = None  # mae only
    mask_ratio: float | None = None  # mae only
    norm_pix_loss: bool | None = None  # mae only
    decoder: Decoder | None = None  # mae only


@dataclass(frozen=True)
class Fit:
    model: str
    filter_size: int
    offsets: str  # random | ordered: drawn per layer and head, or the fixed order of arXiv 2505.19985
    solver: str  # adam (arXiv 2401.12511) | svd (arXiv 2505.19985)
    logit_scale: float  # gamma: the factor of the logits, kept in the student
    steps: int | None = None  # adam only
    lr: float | None = None  # adam only
    norm_every: int | None = None  # adam only; 0 means no weight normalisation
    signal: float | None = None  # svd only
    noise: float | None = None  # svd only
    norm: float | None = None  # svd only: Frobenius norm of each head's Q and K


@dataclass(frozen=True)
class Init:
    source: str  # random | mimetic | impulse | teacher
    fit: str | None = None  # impulse only
    teacher: str | None = None  # teacher only: fine-tuning
    value: bool | None = None  # mimetic only: V and projection, too


@dataclass(frozen=True)
class Transfer:
    method: str  # none | copy | distil
    teacher: str | None = None
    layers: int | None = None  # the first `layers` blocks
    weight: float | None = None  # distil only: lambda, on the sum over layers
    maps: str | None = None  # copy only: same_image | other_image (control)


@dataclass(frozen=True)
class Student:
    model: str
    init: Init
    transfer: Transfer
    recipe: str
    overrides: dict[str, Any]  # recipe keys that differ for this student
    labels: int
    permute_labels: bool  # control: the training labels are shuffled once, val and test stay true


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


NESTED = {"probe": Probe, "decoder": Decoder, "init": Init, "transfer": Transfer}
NESTED |= {"paper": Paper, "scaled": Scaled}


def build(cls: type[T], values: dict, where: str) -> T:
    """Return `cls` made of `values`, a mapping taken from `params.yaml` at the dotted key `where`.

    Raises:
        UserError: a key is unknown or missing.
    """
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
    made = {
        k: build(NESTED[k], v, f"{where}.{k}") if k in NESTED and isinstance(v, dict) else v
        for k, v in values.items()
    }
    if cls is Recipe:
        made["betas"] = tuple(made["betas"])
    return cls(**made)


def build_study(values: dict, where: str) -> Study:
    """Return the study made of `values`, taken from `params.yaml` at the dotted key `where`.

    Raises:
        UserError: a key is unknown or missing.
    """
    study = build(Study, values, where)
    panels = {k: build(Panel, v, f"{where}.panels.{k}") for k, v in values["panels"].items()}
    return replace(study, panels=panels)


def recipe_of(student: Student, recipe: dict, where: str) -> Recipe:
    """Return a student's recipe with its overrides applied.

    Raises:
        UserError: an override names no recipe key.
    """
    for key in student.overrides:
        if key not in recipe:
            raise UserError(
                f"params.yaml: unknown key {where}.overrides.{key}{nearest(key, recipe)};"
                f" allowed: {', '.join(recipe)}"
            )
    return build(Recipe, {**recipe, **student.overrides}, where)
