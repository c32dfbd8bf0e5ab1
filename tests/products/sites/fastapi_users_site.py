"""fastapi-users over SQLite: a JWT in a cookie at `/cookie/…`, as a bearer token at `/bearer/…`."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, FastAPI
from fastapi_users import BaseUserManager, FastAPIUsers, UUIDIDMixin, schemas
from fastapi_users.authentication import (
    AuthenticationBackend,
    BearerTransport,
    CookieTransport,
    JWTStrategy,
)
from fastapi_users_db_sqlalchemy import SQLAlchemyBaseUserTableUUID, SQLAlchemyUserDatabase
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase

SECRET = os.environ["SITE_SECRET"]
engine = create_async_engine("sqlite+aiosqlite:///users.sqlite3")
make_session = async_sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class User(SQLAlchemyBaseUserTableUUID, Base):
    pass


class UserManager(UUIDIDMixin, BaseUserManager[User, UUID]):
    reset_password_token_secret = SECRET
    verification_token_secret = SECRET


async def get_session() -> AsyncGenerator[AsyncSession]:
    async with make_session() as session:
        yield session


async def get_manager(
    session: Annotated[AsyncSession, Depends(get_session)],
) -> AsyncGenerator[UserManager]:
    yield UserManager(SQLAlchemyUserDatabase(session, User))


def get_strategy() -> JWTStrategy[User, UUID]:
    return JWTStrategy(secret=SECRET, lifetime_seconds=3600)


cookie = AuthenticationBackend(
    name="cookie", transport=CookieTransport(cookie_secure=False), get_strategy=get_strategy
)
bearer = AuthenticationBackend(
    name="bearer", transport=BearerTransport(tokenUrl="bearer/login"), get_strategy=get_strategy
)
users = FastAPIUsers[User, UUID](get_manager, [cookie, bearer])


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield


app = FastAPI(lifespan=lifespan)
app.include_router(users.get_auth_router(cookie), prefix="/cookie")
app.include_router(users.get_auth_router(bearer), prefix="/bearer")
app.include_router(users.get_register_router(schemas.BaseUser[UUID], schemas.BaseUserCreate))


@app.get("/")
async def home() -> str:
    return "hello"


@app.get("/me")
async def me(user: Annotated[Any, Depends(users.current_user())]) -> str:
    return str(user.id)
