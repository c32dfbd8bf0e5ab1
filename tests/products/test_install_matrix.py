"""A resolver finds versions for this package, with all its extras, next to well-known products.

Nothing is installed: uv resolves the requirements, with the index that pip is configured for.
Chosen with `-m products`; needs an index, and skips what cannot be resolved without this package.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from tests.support.commands import run
from tests.support.servers import ROOT

pytestmark = [pytest.mark.products, pytest.mark.timeout(170)]

NOT_FOR_USERS = {"demo"}
NEWEST = [
    *("arq", "celery[redis]", "channels-redis", "datasette", "django-redis", "dramatiq[redis]"),
    *("fastapi-users", "flask-limiter[redis]", "gradio", "kinto", "limits[redis]"),
    *("litestar[redis]", "marimo", "mlflow", "nicegui", "otterwiki", "pypiserver", "rq"),
    *("starlette-admin", "weblate"),
]
OLDER = {"apache-superset": "3.11", "indico": "3.12.5", "open-webui": "3.12"}
PRODUCTS = OLDER | dict.fromkeys(NEWEST, "3.13")
"""What a site may have installed beside this package, and a Python that it supports."""


def own_requirements() -> list[str]:
    """Return what this package and its extras require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [
        *project["dependencies"],
        *(item for name in extras.keys() - NOT_FOR_USERS for item in extras[name]),
    ]


@pytest.fixture(scope="module")
def index() -> dict[str, str]:
    """Return the variables that have uv use the index of pip. uv does not read its files."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    found = dict(re.findall(r"^\S+?\.([a-z-]+)='?(.*?)'?$", run(command).stdout, re.MULTILINE))
    variables = {
        "UV_DEFAULT_INDEX": found.get("index-url", ""),
        "UV_FIND_LINKS": ",".join(shlex.split(found.get("find-links", ""))),
        "UV_INDEX": " ".join(
            url for url in found.get("extra-index-url", "").split() if url.startswith("http")
        ),
        "SSL_CERT_FILE": found.get("cert", ""),
        # No interpreter is needed to resolve for another version, and none is downloaded.
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_PYTHON": sys.executable,
    }
    return os.environ | {name: value for name, value in variables.items() if value}


def resolve(
    index: dict[str, str], python: str, requirements: str, *options: str
) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-m", "uv", "pip", "compile", "-", "--quiet", "--no-header"),
        *("--no-annotate", f"--python-version={python}", "--no-config", *options),
    ]
    return run(command, input=requirements, env=index, cwd="/", timeout=80)


def newest(index: dict[str, str], product: str) -> str:
    """Return the product, pinned to its newest version for that Python.

    Without the pin, a resolver could evade a conflict with an old release.
    """
    name = product.partition("[")[0]
    found = resolve(index, PRODUCTS[product], name, "--no-deps")
    version = re.search(rf"^{name}==(\S+)", found.stdout, re.MULTILINE)
    if not version:
        pytest.skip(f"{product} is not found: {found.stderr.strip()[:300]}")
    return f"{product}=={version[1]}"


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_product_and_this_package_install_together(product: str, index: dict[str, str]) -> None:
    pinned, python = newest(index, product), PRODUCTS[product]
    together = resolve(index, python, "\n".join([pinned, *own_requirements()]))
    if together.returncode and (alone := resolve(index, python, pinned)).returncode:
        pytest.skip(f"{pinned} cannot be installed by itself: {alone.stderr.strip()[:300]}")
    assert together.returncode == 0, together.stderr


def test_a_conflict_is_noticed(index: dict[str, str]) -> None:
    together = resolve(index, PRODUCTS["arq"], f"{newest(index, 'arq')}\nredis>=99")
    assert together.returncode
    assert "redis" in together.stderr
