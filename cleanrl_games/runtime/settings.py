"""Settings of a run, checked alike wherever they come from, before anything is written.

    defaults < preset < the resumed run's config.yaml < --config FILE < flags

A script's Args is a flat dataclass. What a field may hold is said by its type, so that --help shows it and files are
held to it too: `num_workers: Count = 4`, `clip_coef: Positive = 0.2`, `amp: Literal["auto", "off"] = "auto"`.
"""

import argparse
import contextlib
import dataclasses
import difflib
import inspect
import io
import math
import sys
import typing
from pathlib import Path
from types import UnionType
from typing import Annotated, Literal

import tyro
import yaml

from cleanrl_games.runtime.errors import BadInput, end_in_sentences, first_line
from cleanrl_games.runtime.files import run_folder, script_source, settings_text
from cleanrl_games.runtime.stopping import listen_early


@dataclasses.dataclass(frozen=True)
class Range:
    """What a number may be. `above`: the least value itself is not allowed."""

    least: float
    most: float = math.inf
    above: bool = False

    def __contains__(self, value):
        return (value > self.least if self.above else value >= self.least) and value <= self.most

    def __str__(self):
        low = f"more than {self.least:g}" if self.above else f"{self.least:g} or more"
        if self.most == math.inf:
            return low
        return f"more than {self.least:g}, at most {self.most:g}" if self.above else f"{self.least:g} to {self.most:g}"


def ranged(kind, name, limits):
    return Annotated[kind, limits, tyro.conf.arg(metavar=f"{name} ({limits})")]


Count = ranged(int, "INT", Range(0))  # 0 usually means "none" or "no limit": the field says so
Size = ranged(int, "INT", Range(1))  # there must be at least one
NonNegative = ranged(float, "FLOAT", Range(0.0))
Positive = ranged(float, "FLOAT", Range(0.0, above=True))
Fraction = ranged(float, "FLOAT", Range(0.0, 1.0))


def type_of(hint):
    """A field's annotation → (the type itself, its Range or None)"""
    if typing.get_origin(hint) is Annotated:
        kind, *notes = typing.get_args(hint)
        limits = [note for note in notes if isinstance(note, Range)]
        return kind, limits[0] if limits else None
    return hint, None


def parse_value(hint, value):
    """A value of a settings file → the field's value; raises ValueError with what it should have been."""
    kind, limits = type_of(hint)
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        if value not in choices or isinstance(value, bool) != isinstance(choices[0], bool):
            close = difflib.get_close_matches(str(value), map(str, choices), n=1)
            raise ValueError(
                f"one of {', '.join(map(str, choices))}" + (f" (did you mean {close[0]!r}?)" if close else "")
            )
        return value
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        if inner is str and isinstance(value, str):  # one of them needs no list
            return (value,)
        if not isinstance(value, list | tuple):
            raise ValueError(f"a list of {inner.__name__}")
        return tuple(parse_value(inner, item) for item in value)
    if isinstance(kind, UnionType):
        return value
    if kind is float and type(value) in (int, str):  # YAML reads 3e-4 as text
        try:
            value = float(value)
        except ValueError:
            raise ValueError("a number") from None
    if type(value) is not kind:
        raise ValueError(
            {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(kind, kind.__name__)
        )
    check_number(value, limits)
    return value


def check_number(value, limits):
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a finite number")
    if limits and value not in limits:
        raise ValueError(str(limits))


def resolve_alias(name, value, aliases):
    """A setting as users of similar trainers call it → {our name: value}; their own where it is no alias

    aliases: {their name: our name}, or {their name: {their value: our settings}} where the values differ too."""
    meaning = aliases.get(name, name)
    if isinstance(meaning, str):
        return {meaning: value}
    if not isinstance(value, typing.Hashable) or value not in meaning:
        raise ValueError(f"one of {', '.join(str(known).lower() for known in meaning)}")
    return meaning[value]


def check_settings(cls, values, source, aliases=None):
    """Settings from a file → {field: value}, checked key by key; all unknown keys are named at once, with what they may
    have meant."""
    hints = typing.get_type_hints(cls, include_extras=True)
    if not isinstance(values, dict):
        raise BadInput(f"{source} should be a YAML mapping of settings, found {type(values).__name__}.")
    aliases = aliases or {}
    unknown = [name for name in values if name not in hints and name not in aliases]
    if unknown:
        said = []
        for name in unknown:
            close = difflib.get_close_matches(str(name), [*hints, *aliases], n=1)
            said.append(f"{name!r}" + (f" (did you mean {close[0]!r}?)" if close else ""))
        raise BadInput(f"{source}: unknown setting{'s' * (len(said) > 1)} {', '.join(said)}.")
    checked = {}
    for name, value in values.items():
        try:
            for ours, meant in resolve_alias(name, value, aliases).items():
                checked[ours] = parse_value(hints[ours], meant)
        except ValueError as error:
            raise BadInput(f"{source}: {name} should be {error}, found {value!r}.") from None
    return checked


def check_args(args):
    """The same checks for what came from flags, presets and defaults, which tyro does not look at closely."""
    for name, hint in typing.get_type_hints(type(args), include_extras=True).items():
        value = getattr(args, name)
        try:
            parse_value(hint, value)
        except ValueError as error:
            raise BadInput(f"--{name.replace('_', '-')} should be {error}, found {value!r}.") from None


def latest_run(exp_name):
    """The run of this name whose checkpoint is the newest, for a bare --resume."""
    found = sorted(Path("runs").glob(f"*__{exp_name}__*/checkpoint.pt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise BadInput(f"There is no run of {exp_name} in ./runs to go on with: give --resume a run's folder.")
    return str(found[-1].parent)


def split_flags(argv, aliases):
    """--flag=value becomes two words; a flag that users of similar trainers type becomes ours."""
    words = []
    for word in argv:
        flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        name = flag.removeprefix("--").replace("-", "_")
        meaning = aliases.get(name.removeprefix("no_"), name) if flag.startswith("--") else flag
        if isinstance(meaning, dict):  # a switch whose two values mean other settings here
            for ours, meant in meaning[not name.startswith("no_")].items():
                words += [f"--{ours.replace('_', '-')}", str(meant)]
            continue
        words.append(f"--{meaning.replace('_', '-')}" if name in aliases else flag)
        if equals:
            words.append(value)
    return words


def read_settings(file):
    try:
        return yaml.safe_load(Path(file).read_text()) or {}
    except (
        OSError,
        ValueError,
        RecursionError,
        yaml.YAMLError,
    ) as error:  # ValueError: no UTF-8, or a date that is none
        raise BadInput(f"Cannot read the settings in {file}: {first_line(error)}") from None


def parse_flags(cls, description, argv=None):
    """A tool's flags into its Args: the same checks as for a script's, without files and presets."""
    end_in_sentences()
    args = tyro.cli(cls, args=argv, description=description)
    check_args(args)
    return args


def flag_type(hint):
    """For argparse's `type=`: a number of this range. It names the flag itself and ends with exit code 2, too."""
    kind, limits = type_of(hint)

    def parse(text):
        try:
            value = kind(text)
            check_number(value, limits)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"should be {'a whole' if kind is int else 'a'} number, {limits}, found {text!r}"
            ) from None
        return value

    return parse


def groups_of(cls):
    """The `# --- name` comments of an Args → {the field below it: name}"""
    found, name = {}, ""
    for line in inspect.getsource(cls).splitlines():
        if line.strip().startswith("# --- "):
            name = line.strip().removeprefix("# --- ")
        elif name and (field := line.partition(":")[0].strip()) in cls.__dataclass_fields__:
            found[field] = name
            name = ""
    return found


def in_groups(text, groups):
    """tyro's help of a flat dataclass, with a line before each group of settings."""
    lines = text.splitlines()
    for field, name in groups.items():
        flag = f" --{field.replace('_', '-')}"
        (at,) = [at for at, line in enumerate(lines) if line[1:].startswith((f"{flag} ", f"{flag},"))]
        is_boxed = lines[at].startswith("│")  # not where the terminal has no such characters
        lines.insert(at, f"├─ {name} ".ljust(len(lines[at]) - 1, "─") + "┤" if is_boxed else f" --- {name}")
    return "\n".join(lines) + "\n"


def other_words(presets, aliases):
    """What --help says of presets and of settings' other names."""
    text = ""
    for name, values in presets.items():
        settings = " ".join(f"--{setting.replace('_', '-')} {value}" for setting, value in values.items())
        text += f"\n    --preset {name}: {settings or 'the defaults'}"
    text = f"\n\nPresets:\n{text}" if text else ""
    names = [f"{name} = {meaning}" for name, meaning in aliases.items() if isinstance(meaning, str)]
    return text + (f"\n\nOther names, as flags and in YAML:\n\n    {', '.join(names)}" if names else "")


def parse_args(cls, presets, argv=None, aliases=None):
    """Reads flags into the script's Args. What was said more specifically wins. `aliases`: see resolve_alias"""
    module = sys.modules[cls.__module__]
    end_in_sentences()
    listen_early()
    script_source(module.__file__)  # as it is now, should somebody edit the file while it runs
    words = split_flags(sys.argv[1:] if argv is None else argv, aliases or {})
    for at, word in enumerate(words):
        if word == "--resume" and (at + 1 == len(words) or words[at + 1].startswith("--")):
            words.insert(at + 1, latest_run(cls.exp_name))
    print_config = "--print-config" in words
    words = [word for word in words if word != "--print-config"]
    said = {
        name: words[words.index(f"--{name}") + 1]
        for name in ("preset", "resume", "config")
        if f"--{name}" in words[:-1]
    }
    values = {}
    if "resume" in said:
        if not Path(said["resume"]).exists():
            raise BadInput(
                f"--resume {said['resume']}: there is no such file or folder. Give a run's folder or its checkpoint.pt."
            )
        file = run_folder(said["resume"]) / "config.yaml"
        values |= check_settings(cls, read_settings(file), file, aliases)
    if "config" in said:
        values |= check_settings(cls, read_settings(said["config"]), said["config"], aliases)
    preset = presets.get(said.get("preset", values.get("preset")), {})
    description = (
        f"{module.__doc__}\n--print-config writes all settings, as these flags would set them, as YAML and ends."
        f"{other_words(presets, aliases or {})}"
    )
    default = cls(**{**preset, **values})
    if "-h" in words or "--help" in words:
        out = sys.stdout
        shown = io.TextIOWrapper(io.BytesIO(), out.encoding, out.errors)  # tyro draws what the terminal can show
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            tyro.cli(cls, default=default, args=["--help"], description=description)
        shown.seek(0)
        print(in_groups(shown.read(), groups_of(cls)), end="")
        raise SystemExit(0)
    args = tyro.cli(cls, default=default, args=words, description=description)
    check_args(args)
    end_in_sentences(getattr(args, "debug", False))
    if print_config:
        print(settings_text(args), end="")
        raise SystemExit(0)
    return args
