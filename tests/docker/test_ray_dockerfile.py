"""docker/ray.Dockerfile, which adds Ray to an image: its packages, and the rules of docker/Dockerfile."""

import re
import tomllib

from packaging.requirements import Requirement

from tests.docker.files import DOCKER, needed, pinned
from tests.e2e.server import ROOT

DOCKERFILE = (DOCKER / "ray.Dockerfile").read_text(encoding="utf-8")
_, PACKAGES, IMAGE = re.split(r"^FROM .*\n", DOCKERFILE, flags=re.MULTILINE)


def test_image_installs_the_declared_extra() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = (Requirement(line) for line in declared["optional-dependencies"]["ray"])
    (installed,) = re.findall(r"'(ray\[.*?\])'", PACKAGES)
    assert Requirement(installed).extras == extra.extras
    version = re.search(r"^ray==(.*)$", (DOCKER / "ray-constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    assert version[1] in extra.specifier


def test_all_packages_of_ray_are_pinned() -> None:
    image, ray = pinned("constraints.txt"), pinned("ray-constraints.txt")
    assert needed(Requirement("ray[serve,data]"), set()) <= image | ray
    assert not image & ray


def test_build_copies_files_of_its_context() -> None:
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, flags=re.MULTILINE)
    assert [line.split() for line in copied] == [["constraints.txt", "ray-constraints.txt"]]
    assert all((DOCKER / name).is_file() for line in copied for name in line.split())


def test_image_keeps_user_and_programs() -> None:
    """The user is that of the image below it; pip and its files stay in the other stage."""
    assert re.findall(r"^(\w+)", IMAGE, flags=re.MULTILINE) == ["COPY", "ENV"]
    assert "COPY --from=packages /ray /opt/roundhouse" in IMAGE
    assert DOCKERFILE.count("FROM ${IMAGE}") == 2
