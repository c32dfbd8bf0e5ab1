"""Flask: gunicorn --workers 2 flask_site:app"""

from flask import Flask, redirect, request, session

from presence_middleware.wsgi import PresenceMiddleware

app = Flask(__name__)
app.secret_key = "change me"
app.wsgi_app = PresenceMiddleware(app.wsgi_app)


@app.before_request
def identify():
    request.environ["presence_middleware.visit"].identify(session.get("user"))


@app.get("/")
def home():
    presence = request.environ["presence_middleware"]
    return {"online": presence.counts(), "who": [seen.id for seen in presence.online(limit=50)]}


@app.get("/users/<name>")
def profile(name):
    presence = request.environ["presence_middleware"]
    seen = presence.last_seen(name)
    return {"online": presence.is_online(name), "last_seen": seen and seen.isoformat()}


@app.get("/friends")
def friends():
    presence = request.environ["presence_middleware"]
    return {"online": presence.online_friends(f"user:{session.get('user')}:friends")}


@app.get("/login/<name>")
def login(name):
    session["user"] = name
    identify()
    return redirect("/")


@app.get("/logout")
def logout():
    request.environ["presence_middleware"].leave(session.pop("user", "nobody"))
    return "bye"
