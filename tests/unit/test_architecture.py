"""docs/architecture.md: which module may import which, and the keys of the data model."""

import ast
import inspect
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from presence_middleware.stores import keys
from tests.support.servers import ROOT

PACKAGE = ROOT / "presence_middleware"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LAYERS = [line.split() for line in re.findall(r"```layers\n(.*?)```", PAGE, re.S)[0].splitlines()]
LEVELS = {module: level for level, modules in enumerate(LAYERS) for module in modules}


def imports(file: Path) -> Iterator[Path]:
    """Yield the files of the package that a file imports, also late or only for its types."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            module = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                inner = module / alias.name
                places = inner.with_suffix(".py"), inner / "__init__.py"
                others = module.with_suffix(".py"), module / "__init__.py"
                yield next(place for place in (*places, *others) if place.is_file())


def top(file: Path) -> str:
    """Return the module or package at the top of the package that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_layer() -> None:
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix in {"", ".py"}}
    assert names - {"__init__", "__pycache__", "py"} == set(LEVELS)


def test_modules_import_only_from_layers_below() -> None:
    wrong = []
    for file in PACKAGE.rglob("*.py"):
        module = top(file)
        if module != "__init__":
            others = {top(imported) for imported in imports(file)} - {module}
            wrong += [(file.name, name) for name in others if LEVELS[name] <= LEVELS[module]]
    assert wrong == []


def test_no_files_import_each_other_in_a_circle() -> None:
    TopologicalSorter({file: set(imports(file)) for file in PACKAGE.rglob("*.py")}).prepare()


def test_the_table_of_keys_is_complete() -> None:
    shown = set(re.findall(r"^\| `\{(?:shard|prefix)\}:(.*?)` \|", PAGE, re.M))
    numbers = {"day": "{day}", "name": "{name}"}
    of_shard = vars(keys.ShardKeys("P", "{kind}")).values()
    written = {name.removeprefix("P:") + "{minute}" * name.endswith(":") for name in of_shard}
    for name, function in inspect.getmembers(keys, inspect.isfunction):
        parameters = list(inspect.signature(function).parameters)
        if parameters[:1] == ["prefix"] and name != "shard_prefixes":
            arguments = [
                {"prefix": "P", "kind": "{kind}"}.get(each, numbers.get(each))
                for each in parameters
            ]
            written.add(function(*arguments).removeprefix("P:"))
    written.add(keys.handled("{kind}:reader:{name}"))
    assert shown == written
