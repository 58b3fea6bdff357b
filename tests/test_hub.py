"""Names from the hub, against a stub of the hub on this machine, each time in a fresh process."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from safetensors.torch import save

from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.errors import ConfigError
from jepa_wm.hub import HubName, parse, resolve

from bundle.tiny import TINY_LEWM, random_tensors  # isort: skip
from test_convert import GIVEN, state  # isort: skip

COMMITS = {"main": "a" * 40, "v2": "b" * 40, "refs/pr/1": "c" * 40}
ERRORS = {  # what the hub answers: status and X-Error-Code
    "gated": (403, "GatedRepo"),
    "secret": (401, "RepoNotFound"),
    "broken": (500, ""),
}


# names


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("hf://o/r", HubName("o/r", None, "")), ("hf://o/r/", HubName("o/r", None, "")),
     ("hf://o/r@v2", HubName("o/r", "v2", "")), ("hf://o/r/a/b", HubName("o/r", None, "a/b")),
     ("hf://my-o/r.1_x@refs%2Fpr%2F1/f.pt", HubName("my-o/r.1_x", "refs/pr/1", "f.pt")),
     (Path("hf://o/r/f.gguf"), HubName("o/r", None, "f.gguf"))],
)  # fmt: skip
def test_names_are_parsed(text, wanted):
    assert parse(text) == wanted


@pytest.mark.parametrize("text", ["a.gguf", "hf", "/hf://o/r", "./hf:/o", "", "http://o/r", "hf:x"])
def test_anything_else_is_a_path_as_it_was(text):
    assert parse(text) is None
    assert resolve(text) == Path(text)


@pytest.mark.parametrize(
    "text",
    ["hf://", "hf://o", "hf://o/", "hf:///r", "hf://o/r@", "hf://o/r/../x", "hf://o/r//x",
     "hf://o/r/a//b", "hf://o r/x", "hf://o/r?x", "hf://ö/r"],
)  # fmt: skip
def test_half_a_name_is_refused(text):
    with pytest.raises(ConfigError, match="is no name on the hub; wanted hf://OWNER/REPO"):
        resolve(text)


def test_a_title_is_the_last_part():
    assert parse("hf://o/vit-l@v2").title == "vit-l"
    assert parse("hf://o/r@v2/sub/vitl.pt").title == "vitl"


# the stub


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's protocol that fetching needs; ``server.repos`` has the files."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = unquote(urlsplit(self.path).path)
        self.server.seen.append(f"{self.command} {path}")
        is_api = path.startswith("/api/models/")
        owner, name, verb, *rest = path.removeprefix("/api/models").strip("/").split("/", 3)
        files = self.server.repos.get(f"{owner}/{name}")
        if name in ERRORS or files is None:
            return self.fail(*ERRORS.get(name, (404, "RepoNotFound")))
        known = {**COMMITS, **{sha: sha for sha in COMMITS.values()}}
        revision = next((r for r in known if f"{rest[0]}/".startswith(f"{r}/")), None)
        if revision is None:
            return self.fail(404, "RevisionNotFound")
        file = rest[0].removeprefix(revision).strip("/")
        if is_api:
            answer = (
                self.tree(files)
                if verb == "tree"
                else self.info(owner, name, known[revision], files)
            )
            return self.send(200, json.dumps(answer).encode(), {}, body)
        if file not in files:
            return self.fail(404, "EntryNotFound")
        data = files[file]
        headers = {
            "X-Repo-Commit": known[revision],
            "ETag": f'"{file.replace("/", "-")}-{len(data)}"',
        }
        self.send(200, data, headers, body)

    def info(self, owner, name, sha, files):
        siblings = [{"rfilename": file} for file in files]
        return {
            "id": f"{owner}/{name}",
            "sha": sha,
            "siblings": siblings,
            "tags": [],
            "private": False,
        }

    def tree(self, files):
        return [
            {"type": "file", "path": file, "size": len(data), "oid": f"{len(data):040x}"}
            for file, data in files.items()
        ]

    def fail(self, status, code):
        self.send(status, b"", {"X-Error-Code": code}, False)

    def send(self, status, data, headers, body):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.repos, server.seen = {}, []
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def fresh(hub, tmp_path):
    """Run Python in a process that knows the stub as its hub."""
    pytest.importorskip("huggingface_hub")

    def run(*arguments, **environment):
        kept = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and k[:3] != "HF_"}
        settings = {
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, *arguments], env=kept | settings | environment, cwd=tmp_path,
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip

    return run


RESOLVE = """
import json, sys, time
time.sleep = lambda seconds: None  # between the library's attempts to reach a hub that is down
from jepa_wm.errors import ConfigError
from jepa_wm.hub import resolve
found = []
for name in sys.argv[1:]:
    try:
        found.append(str(resolve(name)))
    except ConfigError as error:
        found.append(f"error: {error}")
print(json.dumps(found))
"""


@pytest.fixture
def resolved(fresh):
    def run(*names, **environment):
        done = fresh("-c", RESOLVE, *names, **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_one_file_is_fetched_and_cached(hub, resolved):
    hub.repos["o/r"] = {"sub/m.gguf": b"weights"}
    (path,) = resolved("hf://o/r/sub/m.gguf")
    assert Path(path).read_bytes() == b"weights" and path.endswith("sub/m.gguf")
    assert hub.seen.count("GET /o/r/resolve/main/sub/m.gguf") == 1
    assert resolved("hf://o/r/sub/m.gguf") == [path]
    assert hub.seen.count("GET /o/r/resolve/main/sub/m.gguf") == 1
    asked = len(hub.seen)
    assert resolved("hf://o/r/sub/m.gguf", HF_HUB_OFFLINE="1") == [path]
    assert len(hub.seen) == asked


def test_a_revision_is_honoured(hub, resolved):
    hub.repos["o/r"] = {"m.gguf": b"weights"}
    paths = resolved("hf://o/r/m.gguf", "hf://o/r@v2/m.gguf", "hf://o/r@refs%2Fpr%2F1/m.gguf")
    assert [Path(path).parent.name for path in paths] == [c * 40 for c in "abc"]


def test_a_snapshot_has_what_a_converter_reads_and_no_more(hub, resolved):
    rest = {"train.py": b"x", "onnx/model.safetensors": b"x", "a.gguf": b"x", "img.png": b"x"}
    read = {"README.md": b"r", "config.json": b"{}", "model.safetensors": b"w"}
    hub.repos["o/safe"] = read | rest | {"pytorch_model.bin": b"w"}
    hub.repos["o/old"] = {"config.json": b"{}", "a.pth.tar": b"w", "b.pt": b"w"} | {"c.py": b"x"}
    safe, old = resolved("hf://o/safe", "hf://o/old@v2")
    assert {p.name: p.read_bytes() for p in Path(safe).iterdir()} == read
    assert {p.name for p in Path(old).iterdir()} == {"config.json", "a.pth.tar", "b.pt"}
    assert Path(old).name == "b" * 40
    asked = len(hub.seen)
    assert resolved("hf://o/safe", "hf://o/old@v2", HF_HUB_OFFLINE="1") == [safe, old]
    assert len(hub.seen) == asked


def test_failures_are_one_line_each(hub, resolved):
    hub.repos["o/r"] = hub.repos["o/gated"] = hub.repos["o/secret"] = {"m.gguf": b"x"}
    hub.repos["o/broken"] = {"m.gguf": b"x"}
    wanted = {
        "hf://o/none/m.gguf": "no such repository, or a private one",
        "hf://o/none": "no such repository, or a private one",
        "hf://o/secret/m.gguf": "no such repository, or a private one",
        "hf://o/gated/m.gguf": "the repository is gated",
        "hf://o/gated": "the repository is gated",
        "hf://o/r/other.gguf": "no such file in the repository",
        "hf://o/r@v9/m.gguf": "no such revision in the repository",
        "hf://o/r@v9": "no such revision in the repository",
        "hf://o/broken/m.gguf": "",
        "hf://o/-r-/m.gguf": "cannot be fetched (HFValidationError",
    }
    said = dict(zip(wanted, resolved(*wanted), strict=True))
    for name, text in said.items():
        assert text.startswith(f"error: {name}: {wanted[name]}") and "\n" not in text, text


def test_offline_and_not_in_the_cache(hub, resolved):
    hub.repos["o/r"] = {"m.gguf": b"x"}
    for text in resolved("hf://o/r/m.gguf", "hf://o/r", HF_HUB_OFFLINE="1"):
        assert text.endswith("not in the cache, and HF_HUB_OFFLINE is set"), text
    assert hub.seen == []


def test_no_network_uses_the_cache_or_says_so(hub, resolved):
    hub.repos["o/r"] = {"m.gguf": b"x"}
    paths = resolved("hf://o/r/m.gguf")
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    assert resolved("hf://o/r/m.gguf", **nowhere) == paths
    (text,) = resolved("hf://o/r/other.gguf", **nowhere)
    assert text.endswith("not in the cache, and the hub cannot be reached"), text


LOAD = """
import sys, torch
from jepa_wm import info
from jepa_wm.models import load
info.main([sys.argv[1]])
print("width", load(sys.argv[1], torch.device("cpu")).preprocess.crop)
"""


def test_a_bundle_is_named_by_its_file(fresh, hub, tmp_path):
    path = write_bundle(tmp_path / "tiny.gguf", TINY_LEWM, random_tensors(TINY_LEWM, 0))
    hub.repos["o/r"] = {"sub/tiny.gguf": path.read_bytes()}
    done = fresh("-c", LOAD, "hf://o/r@v2/sub/tiny.gguf")
    assert done.returncode == 0, done.stderr
    assert "lewm" in done.stdout and "width" in done.stdout
    assert hub.seen.count("GET /o/r/resolve/v2/sub/tiny.gguf") == 1


@pytest.mark.parametrize("opened", [Bundle.open, find_bundle])
def test_a_bundle_is_no_whole_repository(opened):
    with pytest.raises(ConfigError, match=r"is a repository; name the file: hf://o/r/FILE\.gguf"):
        opened("hf://o/r")


CONVERT = """
import sys
from jepa_wm.convert import main
from jepa_wm.errors import ConfigError
main([*sys.argv[1:], "--out", "x.gguf"])
try:
    main([*sys.argv[1:], "--out", "y.gguf", "--head", "hf://o/none/probe.pt"])
except ConfigError as error:
    print(error)
"""


def test_a_source_is_converted_from_its_name(fresh, hub, tmp_path):
    card = b"---\nlicense: mit\n---\n"
    extra = {"pooler.dense.weight": torch.ones(2, 2)}
    hub.repos["o/vit-s"] = {"model.safetensors": save(state() | extra), "README.md": card}
    settings = [part for pair in GIVEN for part in ("--set", pair)]
    done = fresh("-c", CONVERT, "--family", "hfvit", "--src", "hf://o/vit-s@v2", *settings)
    assert done.returncode == 0, done.stderr
    report, refusal = done.stdout.splitlines()
    assert "matched 18/18 required source tensors, 1 skipped" in report
    meta = Bundle.open(tmp_path / "x.gguf").meta
    assert (meta["general.name"], meta["general.license"]) == ("vit-s", "mit")
    assert "hf://o/none/probe.pt: no such repository" in refusal
    assert not (tmp_path / "y.gguf").exists()


def test_without_the_extra_the_way_to_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # as if it were not installed
    with pytest.raises(ConfigError, match=r"hf://o/r/m\.gguf: .*pip install 'jepa_wm\[hub\]'"):
        resolve("hf://o/r/m.gguf")


NO_NETWORK = """
import sys
def watch(event, args):
    if event.startswith("socket.") and event != "socket.gethostname":
        raise AssertionError(f"{event} {args}")
sys.addaudithook(watch)
from jepa_wm.convert import main
main(sys.argv[1:])
assert "huggingface_hub" not in sys.modules
"""


def test_files_on_this_machine_never_touch_the_network(fresh, hub, tmp_path):
    torch.save(state(), tmp_path / "model.pt")
    settings = [part for pair in GIVEN for part in ("--set", pair)]
    arguments = ["--family", "hfvit", "--src", "model.pt", "--out", "x.gguf", *settings]
    done = fresh("-c", NO_NETWORK, *arguments)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.gguf").exists() and hub.seen == []
