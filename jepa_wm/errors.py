"""The errors of the house: one base class, one class a cause.

Wrong arguments raise the standard ``ValueError``/``TypeError``; files, conversion and
configuration raise these. The command line catches ``JepaError`` and prints it as one line
(``jepa_wm.runtime.command``).
"""


class JepaError(Exception):
    """Base of every error a user can cause: the file or field, what was found, what is right."""


class BundleError(JepaError):
    """A GGUF bundle cannot be read: broken file, missing or impossible key, wrong tensor."""


class ConversionError(JepaError):
    """A source checkpoint cannot be turned into a bundle without guessing."""


class ConfigError(JepaError):
    """The configuration asks for something that does not exist or does not fit together."""
