"""Images for the cluster, built and loaded without a registry.

Product images are described by ordinary `images/NAME/Containerfile`s, which Docker builds too. Here buildah builds them
in a chroot, on a base made from Debian's packages. An image whose inputs have not changed is not built again.
It must not bake this machine's settings (certificates, pip's configuration) into an image: they are mounted, for the
build alone.

Two files beside a Containerfile are for images with much in them: `debian.txt` names packages that its base holds
beside the common ones, and `packages.py` prints a folder outside the repository, made when its pins are new, from which
the Containerfile copies as `--from=packages`. The folder's name goes into the image's key; its content is not read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import archive, children, clients, paths, prepare, state
from tests.cluster.faults import ClusterError, duration, say
from tests.cluster.paths import REPOSITORY, Paths

BASE = "base"
BUILD_SECONDS = 1800
LOAD_SECONDS = 300
MOST_LAYER_BYTES = 4 * 1024**3
KEPT = 2
"""Archives that are kept per image: the last ones used."""


def reference(name: str) -> str:
    """Return the name under which the cluster finds an image."""
    return f"localhost/specmodel-{name}:dev"


def provide(cluster: Paths, names: list[str]) -> None:
    """Build images and load them into the cluster when it is up."""
    chosen = state.read(cluster) if cluster.ready.exists() else None
    for name in names:
        built = build(name)
        if chosen and name != BASE:
            load(cluster, built, chosen.kubernetes)
        print(reference(name))


def build(name: str) -> Path:
    """Return the archive of an image, building it when its inputs have changed."""
    prepare.require_root()
    paths.images_cache().mkdir(parents=True, exist_ok=True)
    if name == BASE:
        return _base()
    folder = REPOSITORY / "images" / name
    if not (folder / "Containerfile").exists():
        there = sorted(each.parent.name for each in (REPOSITORY / "images").glob("*/Containerfile"))
        raise ClusterError(f"there is no images/{name}/Containerfile: choose one of {', '.join(there)}")
    base = _base(_debian_packages(folder))
    packages = packages_of(name)
    inputs = base.stem if packages is None else f"{base.stem} {packages.name}"
    key = key_of(folder / "Containerfile", REPOSITORY, inputs)
    target = paths.images_cache() / f"{name}-{key}.tar"
    if target.exists():
        os.utime(target)
        return target
    prepare.prepare()
    started = time.monotonic()
    say(f"building image {name}")
    with _alone():
        _bud(name, folder / "Containerfile", base, target, packages)
    _forget_old(name)
    _forget_layers()
    say(f"  built in {duration(time.monotonic() - started)}: {target.stat().st_size / 1e6:.0f} MB")
    return target


def packages_of(name: str) -> Path | None:
    """Return the folder that `images/NAME/packages.py` prints, or None for an image without that file."""
    program = REPOSITORY / "images" / name / "packages.py"
    if not program.exists():
        return None
    done = subprocess.run(
        children.bound([sys.executable, str(program)]),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=BUILD_SECONDS,
    )
    if done.returncode != 0:
        raise ClusterError(f"{program} failed; its words are above")
    return Path(done.stdout.strip())


def load(cluster: Paths, image: Path, release: str) -> None:
    """Load an archive into the cluster, unless it was loaded before."""
    if not image.exists():
        raise ClusterError(f"{image} is not there")
    of_ours = image.parent == paths.images_cache()
    name = re.sub(r"-[0-9a-f]{12}$", "", image.stem) if of_ours else str(image.resolve())
    key = image.name if of_ours else f"{image.stat().st_size} {image.stat().st_mtime_ns}"
    loaded: dict[str, str] = json.loads(cluster.loaded.read_text("utf-8")) if cluster.loaded.exists() else {}
    if loaded.get(name) == key:
        return
    started = time.monotonic()
    command = [*clients.ctr_command(cluster, release), "images", "import", str(image)]
    done = clients.try_command(command, seconds=LOAD_SECONDS)
    if done.returncode != 0:
        raise ClusterError(f"{image} could not be loaded: {done.stderr.strip()}")
    cluster.loaded.write_text(json.dumps({**loaded, name: key}), encoding="utf-8")
    say(f"loaded {image.name} in {duration(time.monotonic() - started)}")


def sources(containerfile: str) -> list[str]:
    """Return the paths that a Containerfile copies from the build context, in order."""
    found = []
    joined = re.sub(r"\\\n", " ", containerfile)
    for line in joined.splitlines():
        words = line.split()
        if not words or words[0].upper() not in {"COPY", "ADD"}:
            continue
        if any(word.startswith("--from=") for word in words):
            continue
        plain = json.loads(line[len(words[0]) :]) if words[1].startswith("[") else shlex.split(line)[1:]
        found += [word for word in plain if not word.startswith("--")][:-1]
    return found


def key_of(containerfile: Path, context: Path, base: str) -> str:
    """Return the key of an image: the same Containerfile, base and copied files give the same."""
    text = containerfile.read_text(encoding="utf-8")
    digest = hashlib.sha256(f"{base}\n{text}\n".encode())
    for source in sources(text):
        matches = sorted(context.glob(source.strip("/")))
        if not matches:
            raise ClusterError(f"{containerfile} copies {source}, which is not there")
        for match in matches:
            for file in _files(match):
                digest.update(f"{file.relative_to(context)} {file.stat().st_mode:o}\n".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _files(top: Path) -> Iterator[Path]:
    """Yield the files that a copy of `top` holds."""
    if top.is_file():
        yield top
        return
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        yield from (Path(folder) / name for name in sorted(names) if not name.endswith(".pyc"))


def _debian_packages(folder: Path) -> tuple[str, ...]:
    """Return what an image's base holds beside the common packages."""
    listed = folder / "debian.txt"
    return tuple(listed.read_text(encoding="utf-8").split()) if listed.exists() else ()


def _base(more: tuple[str, ...] = ()) -> Path:
    """Return the archive of a base image, made as images/base/base.toml says, with more of Debian's packages."""
    recipe = REPOSITORY / "images" / BASE / "base.toml"
    text = recipe.read_bytes() + "".join(f"\n{each}" for each in more).encode()
    key = hashlib.sha256(text + archive.architecture().encode()).hexdigest()[:12]
    name = f"{BASE}-more" if more else BASE
    target = paths.images_cache() / f"{name}-{key}.tar"
    if target.exists():
        os.utime(target)
        return target
    prepare.prepare()
    wanted = tomllib.loads(recipe.read_text(encoding="utf-8"))
    started = time.monotonic()
    included = [*wanted["packages"], *more]
    say(f"making a base image: Debian {wanted['suite']} with {', '.join(included)}")
    with _alone(), _scratch() as scratch:
        if target.exists():
            return target
        layer = scratch / "layer.tar"
        command = [
            "mmdebstrap", "--variant=extract", "--quiet", f"--architectures={archive.architecture()}",
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            f"--include={','.join(included)}",
            *(f"--dpkgopt=path-exclude={each}" for each in wanted["without"]),
            *(f"--extract-hook={each}" for each in wanted["after"]),
            wanted["suite"], str(layer),
        ]  # fmt: skip
        _run(command)
        archive.write(
            archive.Image(reference=_base_reference(key), layer=layer, command=tuple(wanted["command"])), target
        )
    _forget_old(name)
    say(f"  made in {duration(time.monotonic() - started)}: {target.stat().st_size / 1e6:.0f} MB")
    return target


def _base_reference(key: str) -> str:
    return f"localhost/specmodel-base:{key}"


def _bud(name: str, containerfile: Path, base: Path, target: Path, packages: Path | None) -> None:
    _buildah("rm", "--all")
    key = base.stem.rpartition("-")[2]
    if _buildah("images", "--quiet", _base_reference(key), check=False).returncode != 0:
        _buildah("pull", "--quiet", f"docker-archive:{base}")
    with tempfile.TemporaryDirectory() as scratch:
        settings = Path(scratch) / "pip.conf"
        settings.write_text(_pip_settings(), encoding="utf-8")
        mounts = [f"{settings}:/etc/pip.conf:ro"]
        if Path("/etc/ssl/certs/ca-certificates.crt").exists():
            mounts.append("/etc/ssl/certs:/etc/ssl/certs:ro")
        # With gigabytes in it an image is not worth keeping layer by layer: its archive is what is kept.
        kept = ["--layers"] if packages is None else ["--layers=false", f"--build-context=packages={packages}"]
        _buildah(
            "bud", "--isolation=chroot", "--pull-never", *kept, "--quiet", "--format=docker", "--timestamp=0",
            *(f"--volume={each}" for each in mounts),
            f"--build-arg=BASE={_base_reference(key)}", f"--tag={reference(name)}",
            f"--file={containerfile}", str(REPOSITORY),
        )  # fmt: skip
    new = target.with_name(f".new-{target.name}")
    new.unlink(missing_ok=True)
    _buildah("push", "--quiet", reference(name), f"docker-archive:{new}:{reference(name)}")
    new.replace(target)
    if packages is not None:
        _buildah("rmi", "--force", reference(name))


def _pip_settings() -> str:
    """Return this machine's settings of pip, from its file and the environment, for the build alone."""
    own = Path("/etc/pip.conf")
    lines = own.read_text(encoding="utf-8").splitlines() if own.exists() else []
    lines = lines if any(line.strip() == "[global]" for line in lines) else ["[global]", *lines]
    asked = {
        option: os.environ[f"PIP_{option.replace('-', '_').upper()}"]
        for option in ("index-url", "extra-index-url", "trusted-host", "proxy")
        if os.environ.get(f"PIP_{option.replace('-', '_').upper()}")
    }
    kept = [line for line in lines if line.split("=")[0].strip() not in asked]
    at = next(number for number, line in enumerate(kept) if line.strip() == "[global]") + 1
    kept[at:at] = [f"{option} = {value}" for option, value in asked.items()]
    return "\n".join(kept) + "\n"


def _buildah(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run buildah on our own store, in a mount namespace of its own: what it mounts goes when it ends."""
    store = paths.images_cache() / "buildah"
    driver = _driver(store)
    with tempfile.TemporaryDirectory() as run:
        command = [
            "unshare", "--mount", "--propagation", "private",
            "buildah", "--root", str(store), "--runroot", run, "--storage-driver", driver, *arguments,
        ]  # fmt: skip
        return _run(command, check=check)


def _driver(store: Path) -> str:
    """Return how buildah keeps layers: overlays cannot be laid on an overlay."""
    store.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(store)], capture_output=True, text=True, check=True, timeout=30
    )
    return "vfs" if done.stdout.strip() == "overlayfs" else "overlay"


def _forget_layers() -> None:
    """Empty buildah's store once it has grown large: old layers are of no use, and it does not forget by itself."""
    with _alone():
        store = paths.images_cache() / "buildah"
        done = _run(["du", "--summarize", "--block-size=1", str(store)])
        if int(done.stdout.split()[0]) > MOST_LAYER_BYTES:
            shutil.rmtree(store)


def _run(command: list[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            children.bound(command),
            input="",
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS,
            cwd="/",
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(command)}: not done within {BUILD_SECONDS // 60} minutes") from None
    if check and done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed\n{(done.stdout + done.stderr).strip()[-4000:]}")
    return done


@contextmanager
def _alone() -> Iterator[None]:
    """Let one image be built at a time. The lock goes with the process that holds it."""
    with (paths.images_cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _scratch() -> Iterator[Path]:
    """Give a folder that is empty, also after a build that was killed. Only for the holder of the lock."""
    folder = paths.images_cache() / ".scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def _forget_old(name: str) -> None:
    """Remove all but the archives used last."""
    pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{12}}")
    archives = [each for each in paths.images_cache().glob("*.tar") if pattern.fullmatch(each.stem)]
    for old in sorted(archives, key=lambda each: each.stat().st_mtime, reverse=True)[KEPT:]:
        old.unlink()
