"""Events: who comes online and who goes offline, for loops in threads and in coroutines.

The feed of a kind reads its streams. Each iterator takes events from its own place.
"""
