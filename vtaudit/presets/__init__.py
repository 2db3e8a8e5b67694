"""Presets: what the columns of well-known logs are called, and what a preset takes for granted.

The presets themselves are data, in presets.toml.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources
from typing import TypedDict, cast

from vtaudit.errors import SettingsError, name_choices

SettingValue = str | int | float | bool


class _PresetTable(TypedDict, total=False):
    """One table of presets.toml."""

    description: str
    assumes: list[str]
    columns: dict[str, str | list[str]]
    settings: dict[str, SettingValue]
    settings_without: dict[str, dict[str, SettingValue]]


@dataclass(frozen=True, slots=True)
class Preset:
    """The column expressions and settings of one kind of log.

    Attributes:
        name: name of the preset.
        description: one line.
        assumes: sentences; what must hold of a log for the preset to be right.
        columns: canonical name -> expressions, of which the first that the log has is taken.
        settings: settings that always apply.
        settings_without: canonical name -> settings that apply where it is not mapped.
    """

    name: str
    description: str
    assumes: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]
    settings: dict[str, SettingValue]
    settings_without: dict[str, dict[str, SettingValue]]

    def settings_for(self, mapped: Collection[str]) -> dict[str, SettingValue]:
        """Return the settings for a log that has the canonical columns `mapped`."""
        settings = dict(self.settings)
        for canonical, extra in self.settings_without.items():
            if canonical not in mapped:
                settings.update(extra)
        return settings


@functools.cache
def _read_presets() -> dict[str, _PresetTable]:
    text = resources.files(__name__).joinpath("presets.toml").read_text(encoding="utf-8")
    return cast("dict[str, _PresetTable]", tomllib.loads(text))


def list_presets() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(sorted(_read_presets()))


def load_preset(name: str) -> Preset:
    """Return the preset `name`.

    Raises:
        SettingsError: there is no preset of that name.
    """
    presets = _read_presets()
    if name not in presets:
        raise SettingsError(f"no preset is named {name!r}{name_choices(name, presets)}")
    table = presets[name]
    return Preset(
        name=name,
        description=table["description"],
        assumes=tuple(table.get("assumes", ())),
        columns={
            canonical: (found,) if isinstance(found, str) else tuple(found)
            for canonical, found in table.get("columns", {}).items()
        },
        settings=dict(table.get("settings", {})),
        settings_without={
            canonical: dict(extra) for canonical, extra in table.get("settings_without", {}).items()
        },
    )
