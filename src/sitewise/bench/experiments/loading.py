"""YAML as people mean it: a key that stands twice is a mistake, 1e-3 is a number."""

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

MERGE = "tag:yaml.org,2002:merge"  # of `<<: *anchor`


def load_yaml(path: Path) -> dict[Any, Any]:
    """Read a mapping from a YAML file; a ValueError says what is wrong and in which line."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"expected a mapping of keys to values, got {type(raw).__name__}")
    return raw


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    """YAML lets a later key silently replace an earlier one: here it is an error. 1e-3 is a number here."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node whose keys all differ."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: the key {key!r} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
