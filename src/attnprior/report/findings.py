"""Sentences that say what a study shows, and what it does not."""

from collections.abc import Collection, Sequence

from attnprior.analysis.panels import Row
from attnprior.report.tables import number
from attnprior.report.words import ONE_SEED


def pair(comparisons: Sequence[Row], arm: str, reference: str) -> Row:
    """Return the comparison of top-1 accuracy of `arm` minus `reference`, turned round where needed."""
    for row in comparisons:
        if row["metric"] == "top1" and {row["arm"], row["reference"]} == {arm, reference}:
            return row if row["arm"] == arm else _reversed(row)
    raise KeyError((arm, reference))


def _reversed(row: Row) -> Row:
    turned = {**row, "arm": row["reference"], "reference": row["arm"], "difference": -row["difference"]}
    for low, high in (("low", "high"), ("bootstrap_low", "bootstrap_high")):
        turned[low], turned[high] = (None if row[k] is None else -row[k] for k in (high, low))
    return turned


def is_shown(row: Row, confidence: float) -> bool:
    """Return whether a difference counts as shown.

    The t interval over seeds and the bootstrap interval over seeds and test images must both exclude 0,
    and the p value must stay below 1 - confidence after Holm's correction.
    """
    intervals = ((row["low"], row["high"]), (row["bootstrap_low"], row["bootstrap_high"]))
    apart = all(low is not None and high is not None and not low <= 0 <= high for low, high in intervals)
    return apart and row["p_holm"] is not None and row["p_holm"] < 1 - confidence


def answer(rows: Sequence[Row], comparisons: Sequence[Row], baseline: str, confidence: float) -> str:
    """Return the sentence on the best arm of a panel: how far above baseline and runner-up, and if shown."""
    arms = sorted((r for r in rows if r["role"] == "arm"), key=lambda r: -r["top1_mean"])
    best, percent = arms[0]["arm"], number(100 * arms[0]["top1_mean"], 1)
    if len(arms) < 2:
        return f"{best} is the only arm, at {percent} % test accuracy."
    second = arms[1]["arm"]
    if rows[0]["seeds"] == 1:
        return f"{best} has the highest test accuracy, {percent} %, but one seed shows no difference."
    parts = [f"{best} has the highest mean test accuracy, {percent} %"]
    for other in dict.fromkeys((baseline, second)):
        if other != best:
            row = pair(comparisons, best, other)
            name = f"the baseline {other}" if other == baseline else f"{other}, the next"
            if is_shown(row, confidence):
                parts.append(f"{_points(row, confidence)} above {name}")
            else:
                points = number(100 * row["difference"], 1, signed=True)
                parts.append(f"its lead over {name} ({points} points) is not shown")
    return f"{parts[0]}: {'; '.join(parts[1:])}."


def findings(
    rows: Sequence[Row],
    comparisons: Sequence[Row],
    baseline: str,
    confidence: float,
    permuted: Collection[str] = (),
    classes: int = 0,
) -> list[str]:
    """Return the sentences of one panel: its best arm, each arm against the baseline, then the controls.

    `permuted` names the students that were trained on permuted labels: they are held against chance,
    one of `classes`.
    """
    arms = [r for r in rows if r["role"] == "arm"]
    chance = [_chance(r, classes, confidence) for r in rows if r["arm"] in permuted]
    if not comparisons:
        return [f"{baseline} is the only arm: nothing is compared.", *chance]
    if rows[0]["seeds"] == 1:
        return [f"Highest test accuracy: {_best(arms)}. {ONE_SEED.capitalize()}.", *chance]
    out = [_lead(arms, comparisons, confidence)] if len(arms) > 1 else []
    for role, kind in (("arm", ""), ("control", "control ")):
        own = [r["arm"] for r in rows if r["role"] == role and r["arm"] != baseline]
        against = [pair(comparisons, a, baseline) for a in own]
        shown = [r for r in against if is_shown(r, confidence)]
        told = (f"{kind}{_difference(r, confidence)}." for r in sorted(shown, key=lambda r: -r["difference"]))
        out += [t[:1].upper() + t[1:] if kind else t for t in told]
        unclear = [r["arm"] for r in against if r not in shown]
        if unclear:
            whom = f"the control{'s' if len(unclear) > 1 else ''} " if kind else ""
            out.append(f"No difference to {baseline} is shown for: {whom}{', '.join(unclear)}.")
    return out + chance


def _chance(row: Row, classes: int, confidence: float) -> str:
    """Return how a student of permuted labels, which has nothing to learn, compares with guessing."""
    text = f"{row['arm']} was trained on permuted labels: {number(100 * row['top1_mean'], 1)} % test accuracy"
    level, low, high = 1 / classes, row["top1_low"], row["top1_high"]
    chance = f"chance, one of {classes} classes, is {number(100 * level, 1)} %"
    if low is None or high is None:
        why = ONE_SEED if row["seeds"] == 1 else "no interval, all seeds are equal"
        return f"{text} ({why}); {chance}."
    text += f" ({100 * confidence:g} % interval {number(100 * low, 1)} to {number(100 * high, 1)}); {chance}"
    if low <= level <= high:
        return f"{text}, inside the interval, as it should be."
    way = "below" if high < level else "above"
    return f"{text}, outside the interval: the accuracy is {way} chance, which asks for an explanation."


def _lead(arms: Sequence[Row], comparisons: Sequence[Row], confidence: float) -> str:
    ordered = sorted(arms, key=lambda r: -r["top1_mean"])
    first, second = ordered[0]["arm"], ordered[1]["arm"]
    row = pair(comparisons, first, second)
    text = f"Highest mean test accuracy: {_best(arms)}"
    if is_shown(row, confidence):
        return f"{text}. It beats {second}, the next, by {_points(row, confidence)}."
    points = number(100 * row["difference"], 1, signed=True)
    return f"{text}. Its lead over {second}, the next ({points} points), is not shown."


def _best(arms: Sequence[Row]) -> str:
    best = max(arms, key=lambda r: r["top1_mean"])
    return f"{best['arm']}, {number(100 * best['top1_mean'], 1)} %"


def _difference(row: Row, confidence: float) -> str:
    verb = "beats" if row["difference"] > 0 else "falls behind"
    return f"{row['arm']} {verb} {row['reference']} by {_points(row, confidence)}"


def _points(row: Row, confidence: float) -> str:
    """Return the size of a difference whose interval excludes 0."""
    low, high = sorted((abs(row["low"]), abs(row["high"])))
    size = number(100 * abs(row["difference"]), 1)
    return (
        f"{size} points ({100 * confidence:g} % interval {number(100 * low, 1)} to {number(100 * high, 1)})"
    )
