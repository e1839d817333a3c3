"""Test that the Python SDK and the TypeScript SDK offer the same.

The exported names of both, and the public methods and properties of each class that both
export, are compared. A name that only one language needs is listed here with its reason.
"""

from __future__ import annotations

import ast
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "sdk/python/src/cloud_sandbox"
TYPESCRIPT = ROOT / "sdk/typescript/src"

# Exports of one language alone, by the reason. Types of arguments and options are left
# out below: Python has keyword arguments in their place.
ONLY_PYTHON = {"OutputHandler", "ResultHandler"}  # types of arguments of run_code
ONLY_TYPESCRIPT = {
    "VERSION",  # __version__ in Python
    "Data",  # types of arguments, for which Python has bytes, str, dict and Literal
    "Network",
    "NetworkRules",
    "OnTimeout",
    "Ports",
    "ReadFormat",
    "Role",
    "SecretUse",
    "WithClient",
    "Word",
}

# Members of one language alone, as CLASS.member, by the reason.
PYTHON_MEMBERS = {
    "Client.close",  # fetch keeps its connections itself
    "Sandbox.close",
    "ByteStream.readAll",  # bytes() in TypeScript
    "Client.call",  # for the package's own use, which TypeScript marks with @internal
    "Client.connect",
    "Client.disown",
    "Client.open",
    "Client.own",
    "Client.retries",
    "FileWatch.open",
    "Process.drain",
    "Process.killQuietly",
    "Terminal.open",
}
TYPESCRIPT_MEMBERS = {
    "ByteStream.bytes",  # read_all() in Python
    "ByteStream.text",
    "BuildLog.readable",  # Web Streams
    "ByteStream.readable",
    "FileWatch.readable",
    "Output.readable",
    "Process.stdin",
    "Terminal.readable",
    "Terminal.writable",
}

_OPTIONS = re.compile(r"(Options|Changes|Fields|Details)$")


def camel(name: str) -> str:
    """Return the name that TypeScript has for a name of Python."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def python_exports() -> set[str]:
    tree = ast.parse((PYTHON / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
            return {n for n in names if not n.startswith(("Async", "_"))}
    raise AssertionError("__init__.py has no __all__")


def typescript_exports() -> set[str]:
    text = (TYPESCRIPT / "index.ts").read_text()
    names: set[str] = set()
    for block in re.findall(r"^export (?:type )?\{(.*?)\} from", text, re.S | re.M):
        names.update(n.strip().removeprefix("type ") for n in block.split(",") if n.strip())
    return names


def python_members(cls: str) -> set[str] | None:
    """Return the public methods and properties of a class of the synchronous flavour."""
    for path in sorted((PYTHON / "_sync").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name == cls:
                names: set[str] = set()
                for base in node.bases:
                    names |= python_members(ast.unparse(base)) or set()
                for member in node.body:
                    if not isinstance(member, ast.FunctionDef):
                        continue
                    names.add(member.name)
                    if member.name == "__init__":
                        names |= set(
                            re.findall(r"^self\.(\w+)\b.* = ", ast.unparse(member.body), re.M)
                        )
                return {camel(n) for n in names if not n.startswith("_")}
    return None


def typescript_members(cls: str) -> set[str] | None:
    """Return the public methods and properties of a class."""
    for path in sorted(TYPESCRIPT.glob("*.ts")):
        text = path.read_text()
        found = re.search(
            rf"^export (?:abstract )?class {cls}\b(?: extends (\w+))?[^\n]*\{{\n(.*?)^\}}",
            text,
            re.S | re.M,
        )
        if not found:
            continue
        base, body = found.groups()
        names = typescript_members(base) or set() if base else set()
        # A member with the tag @internal is no part of the interface.
        body = re.sub(
            r"  /\*\*(?:(?!\*/).)*@internal(?:(?!\*/).)*\*/\n[^\n]*\n", "", body, flags=re.S
        )
        names |= set(
            re.findall(
                r"^  (?:static )?(?:async )?\*?(?:get )?([a-z]\w*)(?:<[^>\n]*>)?\(", body, re.M
            )
        )
        names |= set(re.findall(r"^  (?:readonly )?([a-z]\w*)[?!]?: ", body, re.M))
        return names - {"constructor"}
    return None


class SDKsMatch(unittest.TestCase):
    def test_exports(self) -> None:
        python, typescript = python_exports(), typescript_exports()
        self.assertGreater(len(python), 80)
        self.assertEqual(python - typescript, set(ONLY_PYTHON))
        only = {n for n in typescript - python if not _OPTIONS.search(n)}
        self.assertEqual(only, set(ONLY_TYPESCRIPT))

    def test_members(self) -> None:
        compared = 0
        python_only: set[str] = set()
        typescript_only: set[str] = set()
        for cls in sorted(python_exports() & typescript_exports()):
            python, typescript = python_members(cls), typescript_members(cls)
            if python is None or typescript is None:
                continue
            compared += 1
            python_only |= {f"{cls}.{n}" for n in python - typescript}
            typescript_only |= {f"{cls}.{n}" for n in typescript - python}
        self.assertGreater(compared, 15)
        self.assertEqual(python_only, set(PYTHON_MEMBERS))
        self.assertEqual(typescript_only, set(TYPESCRIPT_MEMBERS))


if __name__ == "__main__":
    unittest.main()
