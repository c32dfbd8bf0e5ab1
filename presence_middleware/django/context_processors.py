"""The context processor, for templates of Django and of Jinja2."""

from django.http import HttpRequest

from ..lookup import TemplatePresence, template_presence


def presence(request: HttpRequest) -> dict[str, TemplatePresence]:
    """Return `presence` for the templates of `request`. It asks Redis only when it is used."""
    return {"presence": template_presence(request)}
