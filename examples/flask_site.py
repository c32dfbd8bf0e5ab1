"""Flask: gunicorn --workers 2 flask_site:app"""

from flask import Flask, redirect, render_template_string, request, session

from presence_middleware import PresenceUnavailable, presence_of
from presence_middleware.flask import init_app

PAGE = """<title>Flask</title>
{% set n = presence.count() %}
{% if n is not none %}<p>{{ n }} online</p>{% endif %}
{% for seen in presence.online(limit=50) or [] %}<li>{{ seen.id }}</li>{% endfor %}
"""

app = Flask(__name__)
app.secret_key = "change me"
init_app(app)


def ask(read, *args, **kwargs):
    """Return what Redis answers, or None while it cannot: pages then do without."""
    try:
        return read(*args, **kwargs)
    except PresenceUnavailable:
        return None


@app.get("/")
def home():
    presence = presence_of(request)
    who = [seen.id for seen in ask(presence.online, limit=50) or []]
    return {"online": ask(presence.counts), "who": who}


@app.get("/page")
def page():
    return render_template_string(PAGE)  # an outage is None in templates


@app.get("/users/<name>")
def profile(name):
    presence = presence_of(request)
    seen = ask(presence.last_seen, name)
    return {"online": ask(presence.is_online, name), "last_seen": seen and seen.isoformat()}


@app.get("/friends")
def friends():
    presence = presence_of(request)
    return {"online": ask(presence.online_friends, f"user:{session.get('user')}:friends")}


@app.get("/login/<name>")
def login(name):
    session["user"] = name  # a user who counts, from this request on
    return redirect("/")


@app.get("/logout")
def logout():
    # The end of the login is noticed, too, but the other workers learn it a moment later.
    presence_of(request).leave(session.pop("user", None))
    return "bye"
