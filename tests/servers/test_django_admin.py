"""The list of users in a real Django admin: who is online, and when they were last seen."""

import re
import sys
from pathlib import Path

from presence_middleware import Presence
from tests.support.backends import Server
from tests.support.commands import run
from tests.support.servers import ROOT, environment

ON, OFF = "● online", "○ offline"
MARK = re.compile('<span role="img" aria-label="(.*?)">(.)</span>')  # no style: a policy forbids it
SITE = """
import sys
from tests.products.sites import django_site
from django.conf import settings
from django.test import Client
from django.urls import path
RECIPE
django_site.urlpatterns[:] = [path("admin/", admin.site.urls)]
User.presence = property(lambda user: "an attribute of the site")
# The tables without their history, and a password that takes no time.
settings.MIGRATION_MODULES = dict.fromkeys(["admin", "auth", "contenttypes", "sessions"])
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
django_site.prepare("root", "")
names = "", "smith", "smith "
User.objects.bulk_create(User(username=f"user{n}", last_name=names[n % 3]) for n in range(40))
client = Client(headers={"host": "127.0.0.1"})
client.force_login(User.objects.get(username="root"))
for field in sys.argv[1:]:
    UserAdmin.presence_field = field
    for _ in range(2):
        page = client.get("/admin/auth/user/")
        assert page.status_code == 200
    print(page.content.decode(), end="\\f")
"""


def test_a_page_of_the_list_asks_once_whatever_its_field(
    tmp_path: Path, valkey: Server, variables: dict[str, str], presence: Presence
) -> None:
    for id in ("2", "3", "4", "user0", "user1", "user2", "smith"):
        presence.touch(id)
    presence.leave("3")
    presence.leave("user1")
    valkey.client.config_resetstat()
    *unique, named = lists_of_users(tmp_path, variables, "pk", "username", "last_name")
    reads = valkey.client.info("commandstats")["cmdstat_zmscore"]["calls"]
    # Of each of the six pages: who is online; the times of those here, and of those gone. A write
    # may look up whether somebody left.
    assert 0 < reads <= 24
    for page in unique:
        rows = {name: cells for name, *cells in page}
        assert [rows[f"user{n}"][0] for n in (0, 1, 9)] == [ON, OFF, OFF], "user1 left"
        assert re.fullmatch("now|.*ago", rows["user0"][1])
        assert re.fullmatch("now|.*ago", rows["user1"][1])
        assert rows["user9"][1] == "-"
        assert len(rows) == 41
    online = {name: mark for name, mark, _ in named}  # by a field that is empty or not unique
    assert [online[f"user{n}"] for n in range(6)] == [OFF, ON, ON] * 2


def test_in_an_outage_the_list_has_dashes(tmp_path: Path) -> None:
    (page,) = lists_of_users(tmp_path, {"PRESENCE_REDIS_URL": "redis://127.0.0.1:1"}, "pk")
    assert {(online, seen) for _, online, seen in page} == {("-", "-")}


def lists_of_users(folder: Path, variables: dict[str, str], *fields: str) -> list[list[list[str]]]:
    recipes = (ROOT / "docs" / "recipes.md").read_text()
    (recipe,) = re.findall(r"^```text\n(.*?PresenceAdminMixin.*?)^```$", recipes, re.M | re.S)
    (folder / "shop.py").write_text(SITE.replace("RECIPE\n", recipe))
    env = environment(**variables, PRESENCE_ENABLED="1", SITE_SECRET="of", PYTHONPATH=str(ROOT))
    done = run([sys.executable, "shop.py", *fields], cwd=folder, env=env, check=True)
    cell = r'.*?<td class="field-{}">(.*?)</td>'
    row = r'<th class="field-username">.*?>(\w+)</a>' + cell.format("online")
    pattern = re.compile(row + cell.format("last_seen"), re.DOTALL)
    return [
        [[name, MARK.sub(r"\2 \1", online), seen] for name, online, seen in pattern.findall(page)]
        for page in done.stdout.split("\f")[:-1]
    ]
