"""The JSON schema of the settings, with errors in one line."""

from attnprior.errors import UserError, nearest, one_line
from attnprior.workflow.studyfiles import PARAMS, file_of


def check_schema(params, schema: dict, merged) -> None:
    """Check `params`, a part of the settings `merged`, against the JSON schema.

    Raises:
        UserError: names the file, the key, the value and what is allowed, in one line.
    """
    import jsonschema

    if not isinstance(params, dict):
        raise UserError(
            f"{PARAMS}: must be a mapping of sections such as `datasets:`, is {type(params).__name__}"
        )
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(params))
    if errors:
        # A wrong name first, since its content is judged, too; then the deepest.
        worst = max(errors, key=lambda e: (e.validator == "pattern", len(e.absolute_path), e.message))
        where = ".".join(map(str, list(worst.absolute_path)[:2]))
        raise UserError(f"{file_of(merged, where)}: {_explain(worst)}")


def _explain(error) -> str:
    path = ".".join(str(p) for p in error.absolute_path)
    value, rule = error.instance, error.validator_value
    dot = f"{path}." if path else ""
    match error.validator:
        case "additionalProperties":
            allowed = error.schema.get("properties", {})
            unknown = next(k for k in value if k not in allowed)
            return (
                f"unknown key {dot}{unknown}{nearest(str(unknown), allowed)};"
                f" allowed: {', '.join(sorted(allowed))}"
            )
        case "required":
            missing = next(k for k in rule if k not in value)
            return f"missing key {dot}{missing}; add it (nothing has a default)"
        case "enum":
            return f"{path} is {value!r}{nearest(str(value), rule)}; allowed: {', '.join(map(str, rule))}"
        case "type":
            names = rule if isinstance(rule, list) else [rule]
            hint = ""
            if isinstance(value, str) and "e" in value.lower() and _is_number(value):
                hint = f"; write {float(value)!r}, since YAML 1.1 reads {value} as text"
            return f"{path} is {value!r} ({type(value).__name__}), must be {' or '.join(names)}{hint}"
        case "minimum":
            return f"{path} is {value!r}, must be at least {rule}"
        case "maximum":
            return f"{path} is {value!r}, must be at most {rule}"
        case "exclusiveMinimum":
            return f"{path} is {value!r}, must be above {rule}"
        case "exclusiveMaximum":
            return f"{path} is {value!r}, must be below {rule}"
        case "minItems" | "maxItems":
            return f"{path} has {len(value)} entries, must have {error.validator[:3]}. {rule}"
        case "uniqueItems":
            return f"{path} lists an entry twice: {value!r}; remove one"
        case "pattern":
            return f"{dot}{value!r} is no valid name; allowed: a-z, 0-9 and _, beginning with a letter"
    return f"{path}: {one_line(error.message)}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
