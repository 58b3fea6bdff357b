"""What a family is, and how a converter settles a model's sizes without guessing.

A size can be known from the tensors' shapes, from the source's config and from ``--set``. Where two
of them speak they must agree; where none does, the converter refuses and says which key to give.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from jepa_wm.bundle import schema
from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import BundleError, ConversionError
from jepa_wm.models.model import Model
from jepa_wm.models.source import Source

Meta = dict[str, Any]
Converted = tuple[Meta, dict[str, Tensor]]


@dataclass(frozen=True)
class Family:
    """One model family: how to build it from a bundle and how to convert its source.

    Attributes:
        name: The bundle's ``jepa.family``.
        anchors: Source tensor names by which a state dict of this family is found in a checkpoint.
        build: Bundle -> model whose parameters are still empty; ``load`` fills them.
        convert: (source, keys given by the user) -> (metadata, tensors) of a bundle; raises
            ``ConversionError``.
        default_entry: Entry to convert when a file holds several different models and the user
            names none; several names: the first that is there. Empty: the user has to choose.
    """

    name: str
    anchors: tuple[str, ...]
    build: Callable[[Bundle], Model]
    convert: Callable[[Source, Mapping[str, Any]], Converted]
    default_entry: str | tuple[str, ...] = ""


def settle(
    measured: Mapping[str, Any],
    stated: Mapping[str, Any],
    given: Mapping[str, Any],
    required: tuple[str, ...] = (),
) -> Meta:
    """Merge what the tensors show, the config states and the user gives (who wins over the config).

    Args:
        measured: Keys read from tensor shapes: facts that nothing may contradict.
        stated: Keys read from the source's config.
        given: Keys given by the user.
        required: Keys that must come out.

    Raises:
        ConversionError: listing every contradiction with a measured key and every required key
            nobody knows.
    """
    meta = {**measured, **stated, **given}
    wrong = [
        f"{key} is {measured[key]} by the tensors, but {meta[key]} is stated"
        for key in measured
        if meta[key] != measured[key]
    ]
    unknown = [key for key in required if key not in meta]
    if unknown:
        wrong.append(f"not in the source, give with --set: {', '.join(k + '=' for k in unknown)}")
    if wrong:
        raise ConversionError("; ".join(wrong))
    return meta


def read_fields(config: Mapping[str, Any], fields: Mapping[str, tuple[str, ...]]) -> Meta:
    """Read schema keys from a config under any of their names; null counts as absent.

    Only the named numbers and strings are looked at: instantiation targets and the like pass by
    unread.

    Raises:
        ConversionError: listing values that do not fit the schema.
    """
    meta: Meta = {}
    wrong = []
    for key, names in fields.items():
        row = schema.key_for(key)
        for name in names:
            value = config.get(name)
            if value is None or row is None:
                continue
            if isinstance(value, list) and len(set(map(str, value))) == 1:
                value = value[0]  # [224, 224]
            try:
                meta[key] = schema.coerce(row, value)
            except ValueError as error:
                wrong.append(f"config.json: {name} {error}")
            break
    if wrong:
        raise ConversionError("; ".join(wrong))
    return meta


def read_ratio(config: Mapping[str, Any], name: str, width: int | None) -> int | None:
    """Return a width times the ratio that a config states, None where either is not known.

    Raises:
        ConversionError: the ratio is no positive number.
    """
    ratio = config.get(name)
    if ratio is None or width is None:
        return None
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1 << 20:
        raise ConversionError(f"config.json: {name} is {ratio!r}, wanted a positive number")
    return int(width * ratio)


def refuse_keys(bundle: Bundle, allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse a bundle asking for something its family's graph does not have.

    Raises:
        BundleError: listing every key whose value is not one of those allowed.
    """
    wrong = [
        f"{key} = {bundle.get(key)!r} (a {bundle.family} has {' or '.join(map(repr, values))})"
        for key, values in allowed.items()
        if bundle.get(key) not in values
    ]
    if wrong:
        raise BundleError(f"{bundle.path}: {'; '.join(wrong)}")
