"""The settings of a run: one TOML file, ``--set section.key=value`` over it, or Flower's run config."""

from bouquet.common.settings.settings import Settings, SettingsError, load_settings, parse_settings, section_class
