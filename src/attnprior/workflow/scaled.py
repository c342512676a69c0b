"""Studies at a smaller scale: `x_smoke: {of: x, scale: smoke}` is study x with fewer images and epochs.

Its data sets, students, teachers, fits and recipes are entries of their own, derived here when settings are
read and named with the scale (`cifar10__smoke`), so that no file is shared with the study that it is made
from. They stand in no file: DVC tracks the entries and the scale that they are derived from.
"""

from attnprior.errors import UserError
from attnprior.workflow.studyfiles import DERIVED, file_of

MARK = "__"
REFERENCES = {  # keys of an entry, or of a mapping in it, that name an entry of a registry
    "dataset": "datasets",
    "recipe": "recipes",
    "fit": "fits",
    "teacher": "teachers",
    "student": "students",
}


def expand(params: dict, files: set[str] | None = None) -> dict:
    """Return settings with every scaled study written out, and what it needs derived.

    What stands in other files than `files` is not checked: if it cannot be written out, it is left out.

    Raises:
        UserError: a study in `files` is made from no study, or names no scale.
    """
    short = [n for n, v in params["studies"].items() if isinstance(v, dict) and "of" in v]
    if not short:
        return params
    made = {k: dict(v) if isinstance(v, dict) else v for k, v in params.items()}
    made[DERIVED] = {}
    for name in short:
        path = file_of(params, f"studies.{name}")
        try:
            _write_out(made, name, path)
        except (UserError, KeyError, TypeError, AttributeError):
            if files is None or path in files:
                raise
            del made["studies"][name]
    return made


def _write_out(made: dict, name: str, path: str) -> None:
    values, where = made["studies"][name], f"{path}: studies.{name}"
    origin = made["studies"].get(values["of"])
    if not isinstance(origin, dict) or "panels" not in origin or "scaled" in origin:
        raise UserError(f"{where}.of is {values['of']!r}, must be a study that is not scaled itself")
    if values["scale"] not in made["scales"]:
        known = ", ".join(sorted(made["scales"])) or "none"
        raise UserError(f"{where}.scale is {values['scale']!r}, which scales does not have; known: {known}")
    of, scale = values["of"], values["scale"]
    made["studies"][name] = _Scale(made, scale).study(of, origin)
    # Its tables say of how many epochs. Overrides of students are behind it, too: figures depend on these.
    epochs = [
        f"recipes.{e['recipe']}.epochs" for e in _students(made, origin) if e["recipe"] in made["recipes"]
    ]
    made[DERIVED][f"studies.{name}"] = (
        *(f"studies.{name}", f"studies.{of}", f"scales.{scale}"),
        *dict.fromkeys(epochs),
    )


def _students(made: dict, study: dict) -> list[dict]:
    """Return the entries of a study's students; unknown names are reported by the checks of the study."""
    names = dict.fromkeys(s for p in study["panels"].values() for s in [*p["arms"], *p["controls"]])
    return [made["students"][s] for s in names if s in made["students"]]


class _Scale:
    """Derives entries at one scale into `made`, each once."""

    def __init__(self, made: dict, name: str) -> None:
        self.made, self.name, self.scale = made, name, made["scales"][name]

    def study(self, origin: str, values: dict) -> dict:
        panels = {
            panel: {
                **rest,
                "title": f"{rest['title']} (scaled)",
                "baseline": self.named(rest["baseline"]),
                "arms": [self.entry("students", s) for s in rest["arms"]],
                "controls": [self.entry("students", s) for s in rest["controls"]],
            }
            for panel, rest in values["panels"].items()
        }
        seeds = values["seeds"][: self.scale["seeds"]]
        scaled = {
            "of": origin,
            "images": self.scale["images"],
            "epochs": self._epochs(values),
            "steps": self.scale["steps"],
            "seeds": f"{len(seeds)} of {len(values['seeds'])}",
        }
        paper = {}
        if "paper" in values:
            paper["paper"] = {
                **values["paper"],
                "values": {
                    self.named(d): {self.named(s): key for s, key in keys.items()}
                    for d, keys in values["paper"]["values"].items()
                },
            }
        datasets = [self.entry("datasets", d) for d in values["datasets"]]
        title = f"{values['title']} (scaled: {scaled['epochs']} epochs, {scaled['images']} images)"
        changed = {"title": title, "datasets": datasets, "seeds": seeds, "panels": panels}
        return {**values, **changed, **paper, "scaled": scaled}

    def _epochs(self, values: dict) -> str:
        """Return how many epochs students train, of how many, such as "2 of 100 to 200"."""
        recipes, entries = self.made["recipes"], _students(self.made, values)
        full = {
            {**recipes[e["recipe"]], **e["overrides"]}["epochs"] for e in entries if e["recipe"] in recipes
        }
        most, least = max(full, default=0), min(full, default=0)
        return f"{min(most, self.scale['epochs'])} of {most if most == least else f'{least} to {most}'}"

    def named(self, name: str) -> str:
        return f"{name}{MARK}{self.name}"

    def entry(self, section: str, name: str) -> str:
        """Derive an entry and all that it refers to, and return its name.

        Raises:
            UserError: an entry of a file has that name.
        """
        derived, entries, known = self.named(name), self.made[section], self.made[DERIVED]
        key = f"{section}.{derived}"
        if derived in entries and key not in known:
            raise UserError(
                f"{file_of(self.made, key)}: {key} has the name that {section}.{name} gets at scale"
                f" {self.name}; rename it"
            )
        if derived not in entries and name in entries:
            entries[derived] = {}  # a circle, which the checks report, ends here
            known[key] = (f"{section}.{name}", f"scales.{self.name}")
            shrink = {"datasets": self._dataset, "recipes": self._recipe, "fits": self._fit}
            shrink |= {"students": self._student, "teachers": self._teacher}
            entries[derived] = self._referring(shrink[section](entries[name]))
        return derived

    def _referring(self, values: dict) -> dict:
        return {
            k: self._referring(v)
            if isinstance(v, dict) and k in ("init", "transfer")
            else self.entry(REFERENCES[k], v)
            if k in REFERENCES and isinstance(v, str)
            else v
            for k, v in values.items()
        }

    def _dataset(self, values: dict) -> dict:
        images = self.scale["images"]
        parts = {k: _least(values[k], images) for k in ("train", "val", "test") if k in values}
        return {**values, **parts}

    def _recipe(self, values: dict) -> dict:
        epochs = min(values["epochs"], self.scale["epochs"])
        shrunk = {**values, "epochs": epochs}
        if values.get("warmup_epochs"):
            shrunk["warmup_epochs"] = values["warmup_epochs"] * epochs / values["epochs"]
        return shrunk

    def _fit(self, values: dict) -> dict:
        return {**values, "steps": min(values["steps"], self.scale["steps"])} if "steps" in values else values

    def _teacher(self, values: dict) -> dict:
        probe = values.get("probe")
        if probe is None:
            return values
        return {**values, "probe": {**probe, "labels": min(probe["labels"], self.scale["images"])}}

    def _student(self, values: dict) -> dict:
        overrides = dict(values["overrides"])
        if overrides.keys() & {"epochs", "warmup_epochs"}:
            recipe = {**self.made["recipes"].get(values["recipe"], {"epochs": 1}), **overrides}
            shrunk = self._recipe(recipe)
            overrides |= {k: shrunk[k] for k in ("epochs", "warmup_epochs") if k in shrunk}
        labels = min(values["labels"], self.scale["images"])
        return {**values, "overrides": overrides, "labels": labels}


def _least(count: int | None, most: int) -> int:
    return most if count is None else min(count, most)
