"""Prints the list of users in the admin of another framework, with the column of a recipe.

python -m tests.products.sites.other_admins flask_admin|sqladmin RECIPE
"""

import sys
from contextlib import suppress
from typing import Any

import flask
import flask_admin
import httpx
import sqladmin
from flask_admin.contrib import sqla
from sqlalchemy import Column, Integer, String, create_engine
from sqlalchemy.orm import Session, declarative_base
from starlette.applications import Starlette
from starlette.testclient import TestClient

from presence_middleware import AsyncPresence, Presence, PresenceUnavailable

Base: Any = declarative_base()


class User(Base):
    __tablename__ = "users"
    id: Any = Column(Integer, primary_key=True)
    name: Any = Column(String)
    last_seen = None


def page_of_flask_admin(recipe: dict[str, Any], session: Session) -> str:
    site = flask.Flask(__name__)
    site.secret_key = "of this site"
    flask_admin.Admin(site).add_view(recipe["UserView"](User, session))
    return site.test_client().get("/admin/user/").text


def page_of_sqladmin(recipe: dict[str, Any], session: Session) -> str:
    site = Starlette()
    sqladmin.Admin(site, session.get_bind()).add_view(recipe["UserAdmin"])
    client: httpx.Client = TestClient(site)
    return client.get("/admin/user/list").text


def main(framework: str, text: str) -> None:
    session = Session(create_engine("sqlite:///users.sqlite"))
    Base.metadata.create_all(session.get_bind())
    session.add_all([User(name="ann"), User(name="bob")])
    session.commit()
    recipe: dict[str, Any] = {"User": User, "suppress": suppress}
    recipe |= {"AsyncPresence": AsyncPresence, "PresenceUnavailable": PresenceUnavailable}
    is_flask = framework == "flask_admin"
    recipe["ModelView"] = sqla.ModelView if is_flask else sqladmin.ModelView
    recipe["presence"] = Presence.from_env()
    exec(text, recipe)
    print((page_of_flask_admin if is_flask else page_of_sqladmin)(recipe, session))


main(*sys.argv[1:])
