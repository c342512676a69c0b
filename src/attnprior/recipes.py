"""How a network is trained: the entries of `recipes` in `params.yaml`, without defaults.

`attnprior.recipe_keys` says which keys a recipe has; a field that it has not is None here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RandAugment:
    style: str  # torchvision | timm: whose operations and strengths
    ops: int  # operations per image
    magnitude: float  # torchvision: bin 0..30, a whole number; timm: mean level 0..10
    before_crop: bool | None = None  # where there is a crop or flip: RandAugment comes first
    std: float | None = None  # timm only: deviation of the level
    increasing: bool | None = None  # timm only: a higher level is a stronger change in all operations
    interpolation: str | None = None  # timm only: bilinear | bicubic


@dataclass(frozen=True)
class ColorJitter:
    brightness: float  # factors in 1 - value .. 1 + value; 0 means none
    contrast: float
    saturation: float
    hue: float  # turns in -value .. value, of the circle


@dataclass(frozen=True)
class Erasing:
    probability: float
    scale: tuple[float, float]  # share of the area
    ratio: tuple[float, float]  # height / width
    value: str  # zero | noise: of the normalised image


@dataclass(frozen=True)
class Augment:
    crop: str  # none | padded | resized
    flip: float  # probability of a mirrored image
    randaugment: RandAugment | None
    color_jitter: ColorJitter | None
    erasing: Erasing | None
    mixup: float  # of Beta(value, value); 0 means none
    cutmix: float
    padding: int | None = None  # padded only: black margin in pixels, the largest move
    scale: tuple[float, float] | None = None  # resized only: share of the area that is kept
    ratio: tuple[float, float] | None = None  # resized only: width / height
    interpolation: str | None = None  # resized only: bilinear | bicubic
    mix_probability: float | None = None  # mixup or cutmix: share of the images that is mixed
    mix_switch: float | None = None  # mixup and cutmix: probability of cutmix


@dataclass(frozen=True)
class Recipe:
    optimizer: str  # adamw | adam | sgd | lars
    weight_decay: float
    lr: float  # peak
    schedule: str  # cosine | cosine_whole | cosine_capped | constant | triangular: attnprior.train.schedule
    epochs: int
    batch_size: int
    accumulate: int  # batches whose gradients make one step
    layer_decay: float  # factor of the rate from block to block, downwards; 1 means none
    ema: float  # decay of the running mean of the weights, which is what is kept; 0 means none
    grad_clip: float  # largest gradient norm; 0 means no clipping
    label_smoothing: float
    drop_path: float
    augment: Augment
    processes: int | None = None  # accumulate above 1 only: processes that share the batches of a step
    sharded: bool | None = None  # processes above 1 only: each holds a part of the weights
    betas: tuple[float, float] | None = None  # adamw, adam only
    eps: float | None = None  # adamw, adam only
    momentum: float | None = None  # sgd, lars only
    trust: float | None = None  # lars only: trust coefficient
    decay: str | None = None  # weight_decay above 0 only: matrices | all
    min_lr: float | None = None  # cosine, cosine_whole only: at the end
    per: str | None = None  # step | epoch: how often the rate changes, where it does
    warmup_epochs: float | None = None  # not triangular
    warmup_lr: float | None = None  # where there is warm-up, not cosine_capped: rate at its start
