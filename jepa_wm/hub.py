"""Names from the hub: ``hf://OWNER/REPO[@REVISION][/FILE]`` becomes a path on this machine.

Any other name is a path already and touches no network. ``huggingface_hub`` fetches and caches; its
own settings (``HF_ENDPOINT``, ``HF_HOME``, ``HF_HUB_OFFLINE``, ``HF_TOKEN``) hold.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from jepa_wm.errors import ConfigError

_NAME = re.compile(
    r"hf:/{1,2}(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[^/]+))?(/(?P<file>[^/].*))?/?", re.ASCII
)
# what a converter reads; pickles only where the repository has nothing safer
SAFE_FILES = ["*.json", "*.safetensors", "README.md"]
PICKLES = ["*.pt", "*.pth*", "*.bin"]


@dataclass(frozen=True)
class HubName:
    """A parsed name.

    Attributes:
        repo: ``OWNER/REPO``.
        revision: Branch, tag or commit; None for the default branch.
        file: Path inside the repository, empty for the whole of it.
    """

    repo: str
    revision: str | None
    file: str

    @property
    def title(self) -> str:
        """The file's name without its ending, or the repository's without its owner."""
        return Path(self.file).stem if self.file else self.repo.split("/")[1]


def parse(name: str | Path) -> HubName | None:
    """Parse a name; None if it is a path.

    Raises:
        ConfigError: it begins like a hub name and is none.
    """
    text = str(name)
    if not text.startswith("hf:/"):  # a Path has folded the two slashes
        return None
    found = _NAME.fullmatch(text)
    file = (found["file"] or "").rstrip("/") if found else ""
    if found is None or any(part in ("", ".", "..") for part in file.split("/") if file):
        raise ConfigError(
            f"{text!r} is no name on the hub; wanted hf://OWNER/REPO or hf://OWNER/REPO/FILE, "
            "with @REVISION behind REPO if need be"
        )
    revision = found["revision"]
    return HubName(found["repo"], revision and unquote(revision), file)


def resolve(name: str | Path, one_file: bool = False) -> Path:
    """Return the local path of a name, fetching what the hub has to give.

    Args:
        name: A path, returned as it is, or a hub name: with FILE that file, without it the folder
            of a snapshot (weights, JSON files and the model card).
        one_file: Refuse a hub name without FILE.

    Raises:
        ConfigError: no such repository, revision or file, no access, no network and not in the
            cache, or ``huggingface_hub`` is not installed.
    """
    hub_name = parse(name)
    if hub_name is None:
        return Path(name)
    if one_file and not hub_name.file:
        raise ConfigError(f"{name} is a repository; name the file: hf://{hub_name.repo}/FILE.gguf")
    try:
        from huggingface_hub import errors  # an extra
    except ImportError as error:
        raise ConfigError(
            f"{name}: names on the hub need huggingface_hub: pip install 'jepa_wm[hub]'"
        ) from error
    # the library's own, and the base of those of the HTTP library it is built on
    own = (kind for kind in vars(errors).values() if isinstance(kind, type))
    failures: tuple[type[Exception], ...] = (
        OSError, ValueError, RuntimeError, *(kind for kind in own if issubclass(kind, Exception))
    )  # fmt: skip
    try:
        return _download(hub_name) if hub_name.file else _snapshot(hub_name)
    except failures as error:
        raise ConfigError(f"{name}: {_reason(error)}") from error


def _download(name: HubName) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(name.repo, name.file, revision=name.revision))


def _snapshot(name: HubName) -> Path:
    """Fetch the repository's top level; its pickles only if there are no safetensors."""
    from huggingface_hub import snapshot_download

    def fetch(patterns: list[str]) -> Path:
        folder = snapshot_download(
            name.repo, revision=name.revision, allow_patterns=patterns, ignore_patterns=["*/*"]
        )
        return Path(folder)

    folder = fetch(SAFE_FILES)
    if any(folder.glob("*.safetensors")):
        return folder
    return fetch([*SAFE_FILES, *PICKLES])


def _reason(error: Exception) -> str:
    """Say in one line what went wrong; subclasses stand before their bases."""
    from huggingface_hub import constants, errors

    offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
    known = {
        errors.GatedRepoError: "the repository is gated; accept its terms on the hub and set "
        "HF_TOKEN or log in with `hf auth login`",
        errors.RepositoryNotFoundError: "no such repository, or a private one; check the name, or "
        "set HF_TOKEN or log in with `hf auth login`",
        errors.RevisionNotFoundError: "no such revision in the repository",
        errors.LocalEntryNotFoundError: f"not in the cache, and {offline}",
        errors.EntryNotFoundError: "no such file in the repository",
    }
    for kind, reason in known.items():
        if isinstance(error, kind):
            return reason
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"cannot be fetched ({type(error).__name__}: {first_line[:200]})"
