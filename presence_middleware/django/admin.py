"""The admin's list of users with two columns: who is online, and when everybody was last seen."""

from typing import Any

from django.contrib import admin
from django.contrib.humanize.templatetags.humanize import naturaltime
from django.http import HttpRequest
from django.utils.html import format_html

from ..identity.ids import normalize_id
from ..lookup import template_presence, template_question
from ..queries import Queries
from ..stores import Plan, merge_plans

DASH = "-"


@template_question
def _ask(queries: Queries, ids: list[str]) -> Plan[list[Any]]:
    """Return which of `ids` are online, and when each was last seen, in one round trip."""
    return merge_plans([queries.online_among(ids), queries.last_seen_among(ids)])


class PresenceAdminMixin:
    """Adds the columns `online` and `last_seen` to the list of a `ModelAdmin` of users.

    ```python
    @admin.register(User)
    class UserAdmin(PresenceAdminMixin, BaseUserAdmin):
        pass
    ```

    A page of the list asks Redis once. In an outage, and in a request that no middleware has seen,
    both columns show a dash.
    """

    presence_field = "pk"
    """The attribute that is the id; `"username"` if `PRESENCE_IDENTITY` has `auth:username`."""

    def get_list_display(self, request: HttpRequest) -> tuple[Any, ...]:
        """Return the columns of the site, and these two."""
        return (*super().get_list_display(request), "online", "last_seen")  # type: ignore[misc]

    def get_changelist(self, request: HttpRequest, **options: Any) -> type:
        """Return a list that asks for all people of its page at once."""
        of_site: Any = super().get_changelist(request, **options)  # type: ignore[misc]
        field = self.presence_field

        class ChangeList(of_site):  # type: ignore[misc]
            def get_results(self, request: HttpRequest) -> None:
                super().get_results(request)
                # Several users may have the same id, or none: a field need not be unique or set.
                values = ((user, getattr(user, field)) for user in self.result_list)
                ids = [(user, "" if it is None else normalize_id(str(it))) for user, it in values]
                asked = [id for _, id in ids if id]
                here, moments = _ask(template_presence(request), asked) or [None, {}]
                for user, id in ids:
                    user._presence = None if here is None else (id in here, moments.get(id))

        return ChangeList

    @admin.display(description="online")  # type: ignore[untyped-decorator]  # Django has no types
    def online(self, user: Any) -> str:
        """Return a mark, and its name for screen readers."""
        if user._presence is None:
            return DASH
        mark, name = ("●", "online") if user._presence[0] else ("○", "offline")
        return str(format_html('<span role="img" aria-label="{}">{}</span>', name, mark))

    @admin.display(description="last seen")  # type: ignore[untyped-decorator]
    def last_seen(self, user: Any) -> str:
        """Return how long ago a user was last seen."""
        _, moment = user._presence or (False, None)
        return DASH if moment is None else str(naturaltime(moment))
