"""The dialect in which sweeps are written: its sections as types, from which come its checks (all
that is wrong at once) and its JSON schema (`hybridperf show spec`).

schema = "hybridperf/spec"
schema_version = 1
chunk = 65536                                   # points done together; optional

[target]                                        # what is asked at each point; see `target.py`
question = "collectives"                        # of tables, as of the command of that name
model = "dgx_a100"                              # a model's folder or name, or a datasheet's

[parameters]                                    # grids multiply; the last varies fastest
collective = ["all_reduce", "all_gather"]       # each of a list of numbers or words
n_nodes = 1                                     # a constant
n_gpus = { min = 2, max = 8, scale = "powers_of_two" }           # 2, 4, 8
bytes = { min = 1e3, max = 1e9, count = 100 }   # in logs, or scale = "lin"; also integer = true
x = { min = 1, max = 9 }                        # without count one design: Sobol, or
y = { min = 1, max = 9, sample = "random" }
z = { values = [1, 2, 4], sample = "sobol" }    # one of these at each point of [design]
tp = { table = "layouts.csv", column = "tp" }   # a column of a file; its columns vary together

[design]                                        # of sampled parameters
count = 1024
seed = 0

[prices]                                        # names of `prices.toml` can stand in any formula
file = "mine.toml"                              # optional: replaces and adds; so do numbers here
usd_per_kwh = 0.2
[derived]                                       # more columns, from parameters, results and prices
bytes_per_gpu = "bytes / n_gpus"
[constraints]                                   # points where one fails are left out
large_enough = "bytes_per_gpu >= 1024"

[objective]                                     # columns, whose Pareto front is written
minimise = ["predicted_s", "n_gpus"]            # and maximise = [...]
[top]
count = 10
by = "predicted_s"

What versions before wrote otherwise is rewritten (`renewed`), with a remark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import Field

from hybridperf.fields.frames import ANSWERED_BY
from hybridperf.io import InputError, unknown
from hybridperf.io.expression import parse

SCHEMA, SCHEMA_VERSION = "hybridperf/spec", 1
_LONGEST_GRID = 10**7  # values of one parameter
_LARGEST_CHUNK = 2**22


class Part(pydantic.BaseModel):
    """A section: its keys and no others, numbers as numbers and words as words."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


def _number(text: str) -> str:
    if parse(text, "it").is_condition:
        raise InputError(f"must be a number, got the condition {text!r}")
    return text


def _condition(text: str) -> str:
    if not parse(text, "it").is_condition:
        raise InputError(f"must be a condition such as a <= b, got the number {text!r}")
    return text


Finite = Annotated[float, Field(allow_inf_nan=False)]
Formula = Annotated[str, pydantic.AfterValidator(_number)]
Condition = Annotated[str, pydantic.AfterValidator(_condition)]
Count = Annotated[int, Field(ge=1)]


_Section = TypeVar("_Section", bound=Part)


class Range(Part):
    """From `min` to `max`: `count` values, or those that `sample` and `[design]` say."""

    min: Finite
    max: Finite
    scale: Literal["log", "lin", "powers_of_two"] = "log"
    integer: bool = False
    count: Annotated[int, Field(ge=1, le=_LONGEST_GRID)] | None = Field(
        None, description="so many values, evenly spaced"
    )
    sample: Literal["sobol", "random"] | None = Field(
        None, description="without count: one of the points of [design]"
    )

    @pydantic.model_validator(mode="after")
    def _can_be(self) -> Range:
        least, most = self.min, self.max
        if least > most:
            raise InputError(f"has a range with min {least:g} above max {most:g}; exchange them")
        if self.scale == "log" and least <= 0:
            mend = 'or write scale = "lin"'
            raise InputError(f"is in log space and needs a min above zero, got {least:g}; {mend}")
        if self.count and self.sample:
            raise InputError("takes count or sample, got both")
        if self.scale == "powers_of_two":
            ends = [float(end).hex().split("p")[0] for end in (least, most)]
            if least < 1 or set(ends) != {"0x1.0000000000000"}:
                rule = "goes by powers_of_two from one power of two to another"
                raise InputError(f"{rule}, got {least:g} to {most:g}")
            if self.count or self.sample or self.integer:
                raise InputError("with powers_of_two takes min and max alone")
        elif self.integer and not self.count and not (least.is_integer() and most.is_integer()):
            got = f"got {least:g} to {most:g}"
            raise InputError(f"is a range of whole numbers, which has whole ends, {got}")
        return self


class TableColumn(Part):
    """A column of a file, beside the spec; columns of one file vary together."""

    table: str
    column: str | None = None


def _form(written: Any) -> str:
    if not isinstance(written, Mapping):
        return "values"
    forms = {"table": "table", "values": "drawn"}
    return next((form for key, form in forms.items() if key in written), "range")


_PLAIN = [{"type": "number"}, {"type": "string"}, {"type": "boolean"}]
Values = Annotated[
    Any,  # `design.py` says which of a list is wrong
    pydantic.WithJsonSchema(
        {"anyOf": [*_PLAIN, {"type": "array", "items": {"anyOf": _PLAIN}, "minItems": 1}]}
    ),
]


class Drawn(Part):
    """One of some values at each point of [design]."""

    values: Values
    sample: Literal["sobol", "random"] = "sobol"


Parameter = Annotated[
    Annotated[Values, pydantic.Tag("values")]
    | Annotated[Range, pydantic.Tag("range")]
    | Annotated[TableColumn, pydantic.Tag("table")]
    | Annotated[Drawn, pydantic.Tag("drawn")],
    pydantic.Discriminator(_form),
]


class Sampled(Part):
    """The points of parameters that are sampled."""

    count: Annotated[int, Field(ge=1, le=2**53)]
    seed: Annotated[int, Field(ge=0, le=2**63)] = 0


Names = Annotated[
    list[str],
    pydantic.BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    pydantic.WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    ),
]
Price = Annotated[
    Any,  # `prices.py` reads them
    pydantic.WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]}),
]


class Objective(Part):
    """Names of columns, whose Pareto front is written."""

    minimise: Names = []
    maximise: Names = []


class Top(Part):
    """How many of the best points are also written, and the column whose least numbers are best."""

    count: Annotated[int, Field(ge=1, le=10**6)]
    by: str | None = Field(
        None, description="the only [objective] to minimise, else predicted seconds"
    )


class Asked(Part):
    """Rows of a table, a row a point: parameters are its columns."""

    question: Annotated[
        str,
        Field(
            description="whose columns they are, as of the command of that name",
            json_schema_extra={"enum": [*ANSWERED_BY]},
        ),
    ]
    model: Annotated[str, Field(description="of ops and collectives: a folder or a name")] = ""
    knobs: Annotated[str, Field(description="of steps: fitted step effects, a file")] = ""
    fit: Annotated[str, Field(description="of serve: fitted effects, a folder")] = ""
    also: Names = Field(default_factory=list, description="columns that are not read and pass")


class Written(Part):
    """A sweep as it was written."""

    schema_: Annotated[Literal["hybridperf/spec"], Field(alias="schema")] = "hybridperf/spec"
    schema_version: Literal[1] = 1
    chunk: Annotated[int, Field(ge=1, le=_LARGEST_CHUNK, description="points done together")] = (
        65536
    )
    target: Asked | None = None
    parameters: dict[str, Parameter] = {}
    design: Sampled | None = None
    prices: dict[str, Price] = Field(
        {}, description="replaces and adds; file = FILE names a file of hybridperf/prices"
    )
    derived: dict[str, Formula] = {}
    constraints: dict[str, Condition] = {}
    objective: Objective = Objective()
    top: Top | None = None

    def formulas(self) -> list[str]:
        """Texts of derived columns and constraints."""
        return [*self.derived.values(), *self.constraints.values()]


def json_schema() -> dict[str, Any]:
    """The dialect as a JSON schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Written.model_json_schema(),
        "title": "A sweep of hybridperf",
    }


def part(kind: type[_Section], section: str, given: Mapping[str, Any]) -> _Section:
    """One section alone, from what an option or a call gives; `InputError` of all that is wrong."""
    try:
        return kind.model_validate(given)
    except pydantic.ValidationError as error:
        wrong = [one | {"loc": (section, *one["loc"])} for one in error.errors()]
        raise InputError("; ".join(map(_sentence, wrong))) from error


class Faults:
    """What is wrong with a spec, sentence by sentence."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """An `InputError` in this block is one of them, and what follows goes on."""
        try:
            yield
        except InputError as error:
            self.said.append(str(error))

    def end(self) -> None:
        """Raises one `InputError` that says all faults, if there are any."""
        all_of_it = list(dict.fromkeys(self.said))
        if len(all_of_it) > 1:
            numbered = "; ".join(f"({n}) {one}" for n, one in enumerate(all_of_it, 1))
            raise InputError(f"{len(all_of_it)} faults: {numbered}")
        if all_of_it:
            raise InputError(all_of_it[0])


def validated(document: Mapping[str, Any], faults: Faults) -> tuple[Written, set[str]]:
    """A document of this dialect, and the parameters (or "target") left out since they are wrong.

    Args:
        document: after `renewed`; what is wrong in it is left out.
        faults: take a sentence of each fault, with its place.
    """
    left, wrong = dict(document), set[str]()
    while True:
        try:
            return Written.model_validate(left), wrong
        except pydantic.ValidationError as error:
            for one in error.errors():
                faults.said.append(_sentence(one))
                section, entry = (*map(str, one["loc"]), "")[:2]
                if section == "parameters" and entry:
                    wrong.add(entry)
                elif section == "target":
                    wrong.add("target")
                inside = left.get(section)
                if section in _SINGULAR and isinstance(inside, Mapping) and entry:
                    left[section] = {k: v for k, v in inside.items() if k != entry}
                else:
                    left.pop(section, None)


_SINGULAR = {"parameters": "parameter", "derived": "derived", "constraints": "constraint",
             "prices": "price"}  # fmt: skip
_MUST_BE = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
    "finite_number": "a finite number", "string_type": "text", "bool_type": "true or false",
    "list_type": "a list", "dict_type": "a section of keys and values",
    "model_type": "a section of keys and values", "model_attributes_type": "a section",
    "greater_than_equal": "at least {ge}", "less_than_equal": "at most {le}",
    "greater_than": "above {gt}", "literal_error": "{expected}", "int_parsing_size": "smaller",
}  # fmt: skip


def _sentence(error: Any) -> str:
    """One fault as pydantic has it, in words with its place."""
    path = list(error["loc"])
    if path[0] == "parameters":
        del path[2:3]  # where pydantic has the form of a union
    kind, got, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known(error["loc"][:-1])
        where = f"key of {_place(path[:-1])}" if path[:-1] else "section"
        return str(unknown(where, str(path[-1]), known, f"there are {', '.join(known)}"))
    if kind == "missing":
        return f"{_place(path[:-1])} needs a key {path[-1]!r}"
    if kind == "value_error":
        said = str(context["error"])
        return f"{_place(path)}{said[2:] if said.startswith(('it:', 'it ')) else f' {said}'}"
    must = _MUST_BE.get(kind)
    if must and isinstance(context.get("ge", context.get("le")), int):
        must = f"a whole number of {must}"
    what = f"must be {must.format(**context)}" if must else error["msg"]
    return f"{_place(path)} {what}, got {str(got)[:60]!r}"


def _place(path: list[Any]) -> str:
    section, *inside = map(str, path)
    if section in _SINGULAR and inside:
        key, *inside = inside
        return " ".join([*inside, *(["of"] if inside else []), f"{_SINGULAR[section]} {key}"])
    return " ".join([f"[{section}]" if section not in ("chunk", "schema") else section, *inside])


def _known(path: Sequence[Any]) -> list[str]:
    """Keys of a section."""
    section = str(path[0]) if path else ""
    fields = _SECTIONS[section].model_fields
    also = [*TableColumn.model_fields, "values"] if section == "parameters" else []
    return [field.alias or name for name, field in fields.items()] + also


_SECTIONS: dict[str, type[Part]] = {
    "": Written, "target": Asked, "parameters": Range, "design": Sampled, "objective": Objective,
    "top": Top,
}  # fmt: skip
