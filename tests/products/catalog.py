"""Each product: how it is installed, served, and logged in to, and the settings that make it right.

`settings` of a product is its recipe: all that the environment has to say about its logins.
"""

import base64
import hashlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import httpx

from tests.support.servers import ASGI, WSGI, environment, gunicorn, uvicorn

SECRET = "what this site signs with and nobody else"
EMAIL, PASSWORD, WRONG_PASSWORD = "ada@example.org", "correct horse battery", "wrong horse battery"
SITES = "tests.products.sites"
_CSRF = re.compile(
    r'name="(csrf_token|csrftoken|csrfmiddlewaretoken)"(?: type="hidden")? value="([^"]+)"'
)


def form(client: httpx.Client, path: str, /, **fields: str) -> httpx.Response:
    """Fill in the form of a page and send it, as a browser does: with its CSRF token."""
    page = client.get(path)
    if token := _CSRF.search(page.text):
        fields[token[1]] = token[2]
    response = client.post(path, data=fields, headers={"Referer": str(page.url)})
    assert not response.is_server_error, response.text
    return response


class Product:
    """A product with one who may log in, Ada."""

    requirements: ClassVar[Sequence[str]]
    extras: ClassVar[str] = ""
    """Those of this package."""
    settings: ClassVar[Mapping[str, str]]
    variables: ClassVar[Mapping[str, str]] = {}
    """The product's own."""
    server: ClassVar[str] = "gunicorn>=23"
    user: ClassVar[str] = "ada"
    """Her id, as it is counted. A product that makes it up returns it from `arrive`."""
    page: ClassVar[str] = "/"
    """A page that counts for everybody, logged in or not."""
    private_page: ClassVar[str] = "/"
    """One that the product shows, or shows more of, to those who are logged in."""
    public_pages: ClassVar[Sequence[str]] = ()
    """Those that succeed whatever the password is: with HTTP Basic, the recipe excludes them."""
    has_logout: ClassVar[bool] = True
    """Whether there is one: browsers have none for HTTP Basic."""

    @property
    def name(self) -> str:
        return re.split(r"[\[>=]", self.requirements[0])[0]

    def prepare(self, folder: Path, python: Path) -> None:
        """Write what the product needs before it starts."""

    def command(self, port: int) -> Sequence[str]:
        """Return the module that Python runs, and its arguments."""
        is_asgi = self.server.startswith("uvicorn")
        return (uvicorn(ASGI) if is_asgi else gunicorn(WSGI, 1, "--threads=4"))(port)

    def environment(self, folder: Path) -> dict[str, str]:
        return dict(self.variables)

    def arrive(self, client: httpx.Client) -> str:
        """Make Ada's account, where it is made over HTTP; return her id."""
        return self.user

    def log_in(self, client: httpx.Client, password: str) -> None:
        """Log in as Ada, or try to: by default with HTTP Basic."""
        client.auth = (self.user, password)

    def knows(self, client: httpx.Client) -> bool:
        """Return whether the product takes a client for Ada."""
        return client.get(self.private_page).is_success

    def log_out(self, client: httpx.Client) -> None:
        """Log out, where the product has a way: by default, the path that the recipe names."""
        client.post(self.settings["PRESENCE_LOGOUT"]).raise_for_status()
        client.headers.pop("Authorization", None)


class Kinto(Product):
    """HTTP Basic, with the accounts of its plugin; the app of a Paste ini."""

    requirements = ["kinto>=26.5"]
    settings = {
        "PRESENCE_APP": "pyramid.paster:get_app('kinto.ini')",
        "PRESENCE_IDENTITY": "user=basic, guest=visitor",
        "PRESENCE_EXCLUDE": "+/v1/, +/v1/batch, +/v1/__*, +/v1/contribute.json",
    }
    page = "/v1/buckets"
    private_page = "/v1/buckets"
    public_pages = ["/v1/", "/v1/__api__", "/v1/__heartbeat__", "/v1/contribute.json"]
    has_logout = False

    INI = f"""
[app:main]
use = egg:kinto
kinto.userid_hmac_secret = {SECRET}
kinto.storage_backend = kinto.core.storage.memory
kinto.cache_backend = kinto.core.cache.memory
kinto.permission_backend = kinto.core.permission.memory
kinto.includes = kinto.plugins.accounts
kinto.account_create_principals = system.Everyone
kinto.bucket_create_principals = system.Authenticated
multiauth.policies = account
multiauth.policy.account.use = kinto.plugins.accounts.authentication.AccountsAuthenticationPolicy
"""

    def prepare(self, folder: Path, python: Path) -> None:
        (folder / "kinto.ini").write_text(self.INI)

    def arrive(self, client: httpx.Client) -> str:
        account = {"data": {"password": PASSWORD}}
        client.put(f"/v1/accounts/{self.user}", json=account).raise_for_status()
        return self.user


class PyPIServer(Product):
    """HTTP Basic against an htpasswd file."""

    requirements = ["pypiserver[passlib]>=2.4.2"]
    settings = {
        "PRESENCE_APP": "pypiserver:app(roots=['packages'], password_file='htpasswd',"
        " authenticate=['list', 'download', 'update'], disable_fallback=True)",
        "PRESENCE_IDENTITY": "user=basic, guest=visitor",
        "PRESENCE_EXCLUDE": "+/",
    }
    page = "/simple/"
    private_page = "/simple/"
    public_pages = ["/"]
    has_logout = False

    def prepare(self, folder: Path, python: Path) -> None:
        (folder / "packages").mkdir()
        digest = base64.b64encode(hashlib.sha1(PASSWORD.encode()).digest()).decode()
        (folder / "htpasswd").write_text(f"{self.user}:{{SHA}}{digest}\n")


class WsgiDAV(Product):
    """HTTP Basic or Digest, which the product checks, before it puts the name into the environ."""

    requirements = ["wsgidav>=4.4"]
    settings = {
        "PRESENCE_APP": "wsgidav.wsgidav_app:WsgiDAVApp({"
        "'provider_mapping': {'/': 'files', '/public': 'files'},"
        f"'simple_dc': {{'user_mapping': {{'*': {{'ada': {{'password': '{PASSWORD}'}}}},"
        " '/public': True}}})",
        "PRESENCE_IDENTITY": "user=environ:wsgidav.auth.user_name, guest=visitor",
    }
    public_pages = ["/public", "/public/nothing"]
    has_logout = False

    def prepare(self, folder: Path, python: Path) -> None:
        (folder / "files").mkdir()

    def log_in(self, client: httpx.Client, password: str) -> None:
        client.auth = httpx.DigestAuth(self.user, password)


class OtterWiki(Product):
    requirements = ["otterwiki>=2.26"]
    extras = "flask"
    settings = {
        "PRESENCE_APP": "otterwiki.server:app",
        "PRESENCE_IDENTITY": "user=flask-session:_user_id, guest=visitor",
        "PRESENCE_SESSION_SECRET": SECRET,
        "PRESENCE_LOGOUT": "/-/logout",
    }
    user = "1"
    private_page = "/-/settings"

    def prepare(self, folder: Path, python: Path) -> None:
        subprocess.run(["git", "init", "-q", str(folder / "wiki")], check=True, timeout=60)

    def environment(self, folder: Path) -> dict[str, str]:
        return {
            "REPOSITORY": str(folder / "wiki"),
            "SQLALCHEMY_DATABASE_URI": f"sqlite:///{folder / 'wiki.sqlite3'}",
            "SECRET_KEY": SECRET,
            "EMAIL_NEEDS_CONFIRMATION": "False",
        }

    def arrive(self, client: httpx.Client) -> str:
        passwords = {"password1": PASSWORD, "password2": PASSWORD}
        form(client, "/-/register", email=EMAIL, name="Ada", **passwords)
        return self.user

    def log_in(self, client: httpx.Client, password: str) -> None:
        form(client, "/-/login", email=EMAIL, password=password)

    def knows(self, client: httpx.Client) -> bool:
        return "Change Password" in client.get(self.private_page).text

    def log_out(self, client: httpx.Client) -> None:
        client.get("/-/logout").raise_for_status()


class Datasette(Product):
    """A signed cookie, `ds_actor`, that its password plugin sets; served by its own command."""

    requirements = ["datasette>=0.65.5,<1", "datasette-auth-passwords>=1.1"]
    extras = "flask"
    server = ""
    settings = {
        "PRESENCE_IDENTITY": "user=signed:a.id@ds_actor:actor, guest=visitor",
        "PRESENCE_SESSION_SECRET": SECRET,
        "PRESENCE_LOGOUT": "/-/logout",
    }
    variables = {"DATASETTE_SECRET": SECRET}
    private_page = "/-/actor.json"

    def prepare(self, folder: Path, python: Path) -> None:
        rounds, salt = 1000, "salt"
        digest = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt.encode(), rounds)
        hashed = f"pbkdf2_sha256${rounds}${salt}${base64.b64encode(digest).decode()}"
        metadata = f"""
plugins:
  datasette-auth-passwords:
    {self.user}_password_hash: {hashed}
"""
        (folder / "metadata.yaml").write_text(metadata)
        (folder / "plugins").mkdir()
        plugin = Path(__file__).parent / "sites" / "datasette_plugin.py"
        (folder / "plugins" / "presence.py").write_text(plugin.read_text())

    def command(self, port: int) -> Sequence[str]:
        options = ["--memory", "--metadata", "metadata.yaml", "--plugins-dir", "plugins"]
        return ["datasette", *options, "--port", str(port)]

    def log_in(self, client: httpx.Client, password: str) -> None:
        form(client, "/-/login", username=self.user, password=password)

    def knows(self, client: httpx.Client) -> bool:
        actor: object = client.get(self.private_page).json()["actor"]
        return actor == {"id": self.user}

    def log_out(self, client: httpx.Client) -> None:
        form(client, "/-/logout").raise_for_status()


class FastAPIUsers(Product):
    requirements = ["fastapi-users[sqlalchemy]>=15.0.5", "aiosqlite>=0.20"]
    extras = "jwt"
    server = "uvicorn>=0.38"
    settings = {
        "PRESENCE_APP": f"{SITES}.fastapi_users_site:app",
        "PRESENCE_IDENTITY": "user=bearer:sub@fastapiusersauth, guest=visitor",
        "PRESENCE_SESSION_SECRET": SECRET,
        "PRESENCE_LOGOUT": "/cookie/logout",
    }
    variables = {"SITE_SECRET": SECRET}
    private_page = "/me"

    def arrive(self, client: httpx.Client) -> str:
        account = {"email": EMAIL, "password": PASSWORD}
        return str(client.post("/register", json=account).raise_for_status().json()["id"])

    def log_in(self, client: httpx.Client, password: str) -> None:
        client.post("/cookie/login", data={"username": EMAIL, "password": password})


class FastAPIUsersBearer(FastAPIUsers):
    settings = {
        **FastAPIUsers.settings,
        "PRESENCE_IDENTITY": "user=bearer:sub, guest=visitor",
        "PRESENCE_LOGOUT": "/bearer/logout",
    }

    def log_in(self, client: httpx.Client, password: str) -> None:
        response = client.post("/bearer/login", data={"username": EMAIL, "password": password})
        if response.is_success:
            client.headers["Authorization"] = f"Bearer {response.json()['access_token']}"


class Litestar(Product):
    requirements = ["litestar[jwt]>=2.25"]
    extras = "jwt"
    server = "uvicorn>=0.38"
    settings = {
        "PRESENCE_APP": f"{SITES}.litestar_site:jwt_app",
        "PRESENCE_IDENTITY": "user=bearer:sub@token, guest=visitor",
        "PRESENCE_SESSION_SECRET": SECRET,
        "PRESENCE_LOGOUT": "/logout",
    }
    variables = {"SITE_SECRET": SECRET, "SITE_PASSWORD": PASSWORD}
    private_page = "/me"

    def log_in(self, client: httpx.Client, password: str) -> None:
        client.post("/login", json={"name": "ada", "password": password})


class LitestarSession(Litestar):
    """Litestar's `SessionAuth`, which puts the user into the scope: no setting but the logout."""

    settings = {"PRESENCE_APP": f"{SITES}.litestar_site:session_app", "PRESENCE_LOGOUT": "/logout"}
    user = "42"


class DjangoAdmin(Product):
    """Django's admin, whose users are counted by their names, with the line in MIDDLEWARE alone."""

    requirements = ["django>=5.2", "djangorestframework>=3.15"]
    settings = {"PRESENCE_IDENTITY": "user=auth:username, guest=visitor"}
    variables = {"SITE_SECRET": SECRET}
    page = "/admin/login/"
    private_page = "/admin/"
    site = f"{SITES}.django_site"

    def prepare(self, folder: Path, python: Path) -> None:
        code = f"from {self.site} import prepare; prepare({self.user!r}, {PASSWORD!r})"
        env = environment(**self.variables)
        subprocess.run([python, "-c", code], cwd=folder, env=env, check=True, timeout=240)

    def command(self, port: int) -> Sequence[str]:
        return gunicorn(f"{self.site}:application", 1, "--threads=4")(port)

    def log_in(self, client: httpx.Client, password: str) -> None:
        area = self.private_page
        form(client, f"{area}login/?next={area}", username=self.user, password=password)

    def knows(self, client: httpx.Client) -> bool:
        return f"{self.private_page}logout/" in client.get(self.private_page).text

    def log_out(self, client: httpx.Client) -> None:
        client.headers["Referer"] = str(client.base_url)
        data = {"csrfmiddlewaretoken": client.cookies["csrftoken"]}
        client.post(f"{self.private_page}logout/", data=data).raise_for_status()


class DjangoAPI(DjangoAdmin):
    """Tokens of Django REST framework, which finds their users within the view."""

    private_page = "/api/me"

    def log_in(self, client: httpx.Client, password: str) -> None:
        answer = client.post("/api/token", json={"username": self.user, "password": password})
        if answer.is_success:
            client.headers["Authorization"] = f"Token {answer.json()['token']}"

    def knows(self, client: httpx.Client) -> bool:
        return bool(client.get(self.private_page).json() == self.user)

    def log_out(self, client: httpx.Client) -> None:
        client.post("/api/logout").raise_for_status()
        del client.headers["Authorization"]


class Wagtail(DjangoAdmin):
    requirements = ["wagtail>=6.3", "django>=5.2"]
    page, private_page = "/cms/login/", "/cms/"


class Marimo(Product):
    """A notebook of marimo: whoever has its token is its one user."""

    requirements = ["marimo>=0.25"]
    server = "uvicorn>=0.38"
    settings = {"PRESENCE_APP": f"{SITES}.marimo_site:app"}
    variables = {"SITE_TOKEN": PASSWORD, "MARIMO_SKIP_UPDATE_CHECK": "1"}
    user = "user"
    page = "/auth/login"
    has_logout = False

    def log_in(self, client: httpx.Client, password: str) -> None:
        client.get("/", params={"access_token": password})

    def knows(self, client: httpx.Client) -> bool:
        return client.get("/").url.path == "/"


PRODUCTS: Mapping[str, type[Product]] = {
    "kinto": Kinto,
    "pypiserver": PyPIServer,
    "wsgidav": WsgiDAV,
    "otterwiki": OtterWiki,
    "datasette": Datasette,
    "fastapi-users, cookie": FastAPIUsers,
    "fastapi-users, bearer": FastAPIUsersBearer,
    "litestar, JWT cookie": Litestar,
    "litestar, session": LitestarSession,
    "django-admin": DjangoAdmin,
    "django-rest-framework": DjangoAPI,
    "wagtail": Wagtail,
    "marimo": Marimo,
}
