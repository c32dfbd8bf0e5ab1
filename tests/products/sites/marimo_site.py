"""A notebook of marimo, which takes every visitor for its one user."""

import os
from pathlib import Path

import marimo

NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def hello():
    return
"""

notebook = Path("notebook.py")
notebook.write_text(NOTEBOOK)
server = marimo.create_asgi_app(token=os.environ["SITE_TOKEN"])
app = server.with_app(path="/", root=str(notebook)).build()
