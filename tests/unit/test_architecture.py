"""docs/architecture.md: which module may import which, and the keys of the data model."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from presence_middleware.stores import keys
from tests.support.servers import ROOT

PACKAGE = ROOT / "presence_middleware"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LAYERS = [line.split() for line in re.findall(r"```layers\n(.*?)```", PAGE, re.S)[0].splitlines()]
LEVELS = {module: level for level, modules in enumerate(LAYERS) for module in modules}


def imports(file: Path) -> Iterator[str]:
    """Return the modules of the package that a file imports, by their first name."""
    package = file.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield [*above, *str(name).split(".")][0]


def test_every_module_has_a_layer() -> None:
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix in {"", ".py"}}
    assert names - {"__init__", "__pycache__", "py"} == set(LEVELS)


def test_modules_import_only_from_layers_below() -> None:
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        module = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if module != "__init__":
            others = {name for name in imports(file) if name != module}
            wrong += [(file.name, name) for name in others if LEVELS[name] <= LEVELS[module]]
    assert wrong == []


def test_the_table_of_keys_is_complete() -> None:
    shown = set(re.findall(r"^\| `\{(?:shard|prefix)\}:(.*?)` \|", PAGE, re.M))
    numbers = {"minute": "{minute}", "day": "{day}", "name": "{name}"}
    written = set()
    for name, function in inspect.getmembers(keys, inspect.isfunction):
        parameters = list(inspect.signature(function).parameters)
        if parameters[:1] == ["prefix"] and name != "shard_prefixes":
            arguments = [
                {"prefix": "P", "kind": "{kind}"}.get(each, numbers.get(each))
                for each in parameters
            ]
            written.add(function(*arguments).removeprefix("P:"))
    assert shown == written
