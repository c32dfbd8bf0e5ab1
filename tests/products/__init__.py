"""Real products from PyPI, each in a virtual environment of its own (`pytest -m products`)."""
