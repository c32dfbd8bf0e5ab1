"""Flask: gunicorn --workers 2 flask_site:app"""

from flask import Flask, redirect, request, session

from presence_middleware import PresenceUnavailable
from presence_middleware.wsgi import PresenceMiddleware

app = Flask(__name__)
app.secret_key = "change me"
app.wsgi_app = PresenceMiddleware(app.wsgi_app)


def ask(read, *args, **kwargs):
    """Return what Redis answers, or None while it cannot: pages then do without."""
    try:
        return read(*args, **kwargs)
    except PresenceUnavailable:
        return None


@app.before_request
def identify():
    request.environ["presence_middleware.visit"].identify(session.get("user"))


@app.get("/")
def home():
    presence = request.environ["presence_middleware.presence"]
    who = [seen.id for seen in ask(presence.online, limit=50) or []]
    return {"online": ask(presence.counts), "who": who}


@app.get("/users/<name>")
def profile(name):
    presence = request.environ["presence_middleware.presence"]
    seen = ask(presence.last_seen, name)
    return {"online": ask(presence.is_online, name), "last_seen": seen and seen.isoformat()}


@app.get("/friends")
def friends():
    presence = request.environ["presence_middleware.presence"]
    return {"online": ask(presence.online_friends, f"user:{session.get('user')}:friends")}


@app.get("/login/<name>")
def login(name):
    session["user"] = name
    identify()
    return redirect("/")


@app.get("/logout")
def logout():
    request.environ["presence_middleware.presence"].leave(session.pop("user", None))
    return "bye"
