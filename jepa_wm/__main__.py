"""``python -m jepa_wm``: say which commands there are; ``--version`` prints versions."""

import pkgutil

import jepa_wm
from jepa_wm.runtime import command

_NOT_COMMANDS = {"errors", "hub", "inputs", "launch", "runtime", "__main__"}


def main() -> None:
    """Print the commands."""
    names = sorted(
        module.name
        for module in pkgutil.iter_modules([str(jepa_wm.__path__[0])])
        if not module.ispkg and module.name not in _NOT_COMMANDS
    )
    print("usage: python -m jepa_wm.COMMAND --help\ncommands: " + ", ".join(names))


if __name__ == "__main__":
    command(main)
