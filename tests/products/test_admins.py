"""The columns of docs/recipes.md in the admins of other frameworks."""

import re
import subprocess
from pathlib import Path

import pytest

from presence_middleware import Presence
from tests.support.products import python_of
from tests.support.servers import ROOT, environment

pytestmark = [pytest.mark.products, pytest.mark.timeout(600)]

REQUIREMENTS = ("flask-admin>=2", "flask-sqlalchemy", "sqladmin", "sqlalchemy[asyncio]", "httpx")
RECIPES = (ROOT / "docs" / "recipes.md").read_text("utf-8")


@pytest.mark.parametrize("framework", ["flask_admin", "sqladmin"])
def test_the_list_of_users_shows_when_they_were_seen(
    framework: str, tmp_path: Path, variables: dict[str, str], presence: Presence
) -> None:
    (recipe,) = [
        each for each in re.findall(r"```text\n(.*?)```", RECIPES, re.S) if framework in each
    ]
    presence.touch("1")
    seen = presence.last_seen("1")
    assert seen is not None
    python = python_of("admins", REQUIREMENTS)

    def page(**settings: str) -> str:
        module = [str(python), "-m", "tests.products.sites.other_admins", framework, recipe]
        env = environment(**variables, **settings) | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(
            module, cwd=tmp_path, env=env, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    assert page().count(f"{seen:%Y-%m-%d %H:%M}") == 1
    (tmp_path / "users.sqlite").unlink()
    variables["PRESENCE_REDIS_URL"] = "redis://127.0.0.1:1"
    in_an_outage = page()
    assert "ann" in in_an_outage
    assert f"{seen:%Y-%m-%d}" not in in_an_outage
