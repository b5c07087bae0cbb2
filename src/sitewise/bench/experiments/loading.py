"""Reading of YAML files with stricter rules: duplicate keys are an error, 1e-3 is a number, and sizes are limited."""

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sitewise.arrays import brief

MOST_BYTES, MOST_NODES, DEEPEST = 2**20, 50_000, 32  # limits of a file; the longest experiment has 10 kB and depth 9
MERGE = "tag:yaml.org,2002:merge"  # the tag of the key in `<<: *anchor`


def load_yaml(path: Path) -> dict[Any, Any]:
    """Read a mapping from a YAML file; a ValueError says what is wrong and, if known, in which line."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    text = path.read_text(encoding="utf-8")
    try:
        _check_size(text)
        raw = yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {brief(error)}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"expected a mapping of keys to values, got {type(raw).__name__}")
    return raw


def _check_size(text: str) -> None:
    """Check the number of entries after expansion of aliases, and the depth, by a parser that builds no objects.

    A few lines of nested aliases can expand to more entries than fit into memory.
    """
    sizes: dict[str, int | None] = {}  # number of entries by anchor; None until the end of the node is read
    open_parts: list[tuple[str | None, int]] = []  # unfinished nodes: anchor, and the number of entries before the node
    count = 0
    for event in yaml.parse(text, Loader=_UniqueKeys):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 1)
            if size is None:
                raise yaml.YAMLError(f"line {line}: *{brief(event.anchor)} refers to itself")
            count += size
        elif isinstance(event, yaml.CollectionStartEvent):
            open_parts.append((event.anchor, count))
            if event.anchor is not None:
                sizes[event.anchor] = None
            count += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_parts.pop()
            if anchor is not None:
                sizes[anchor] = count - before
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
        if len(open_parts) > DEEPEST:
            raise yaml.YAMLError(f"line {line}: nested more than {DEEPEST} deep")
        if count > MOST_NODES:
            raise yaml.YAMLError(f"line {line}: more than {MOST_NODES:,} entries after expanding aliases")


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    """A YAML loader for which a duplicate key is an error and 1e-3 is a number.

    PyYAML's own loader silently keeps the last of several equal keys, and reads 1e-3 as text.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping of a node; raise an error if two keys are the same."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: a key must be text or a number, not a list")
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: duplicate key {brief(repr(key))}")
            seen.add(key)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
