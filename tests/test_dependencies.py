"""No version of a dependency that is allowed has a known vulnerability."""

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from environments import PROJECTS, ROOT
from script_modules import load_script

CHECK = load_script("check_dependencies")
FIXED = tomllib.loads((ROOT / "scripts" / "advisories.toml").read_text())["fixed"]
REQUIREMENTS = [
    Requirement(each)
    for project in PROJECTS.values()
    for group in (project["dependencies"], *project.get("optional-dependencies", {}).values())
    for each in group
    if not each.startswith("latchwork")
]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_lower_bound_excludes_versions_with_known_vulnerabilities(requirement):
    fixed = FIXED.get(canonicalize_name(requirement.name), "0")
    bounds = [Version(each.version) for each in requirement.specifier if each.operator in (">=", "==", "~=")]
    assert bounds, f"{requirement} has no lower bound"
    assert max(bounds) >= Version(fixed)


@pytest.mark.parametrize("name", ["starlette", "h11", "jinja2", "python-multipart", "protobuf"])
def test_package_that_reads_what_strangers_send_is_named_with_a_bound(name):
    assert name in FIXED
    assert name in {canonicalize_name(each.name) for each in REQUIREMENTS}


def test_installed_packages_have_no_known_vulnerability():
    assert CHECK.from_list(FIXED, CHECK.installed()) == []


def test_package_that_is_too_old_is_found():
    found = CHECK.from_list({"h11": "0.16.0", "jinja2": "3.1.6", "other": "1"}, {"h11": "0.14.0", "jinja2": "3.1.10"})
    assert found == ["h11 0.14.0: known vulnerabilities before 0.16.0"]
