"""The public Python API: signatures as they are written in the code, and docstrings."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import cafedcl
from site_generator.markdown import plain

PUBLIC = ("cafedcl", "cafedcl.extend", "cafedcl.testing")
"""The modules that people import from; everything else may change without notice."""
INDENT = "    "


def module_page(module_name: str) -> str:
    """Return all public names of a module, in the order of the alphabet."""
    module = import_module(module_name)
    names = [name for name in module.__all__ if not name.startswith("__")]
    parts = [f"```{{py:module}} {module_name}\n```\n\n"]
    parts += [entry(module_name, name) for name in sorted(names, key=str.lower)]
    return "".join(parts)


def public_object(module_name: str, name: str) -> Any:
    """Return what stands behind a public name."""
    if module_name == "cafedcl" and name in cafedcl._CALLED:
        # The name of a folder of the package, which can be called like the function.
        return getattr(import_module(f"cafedcl.{cafedcl._CALLED[name]}"), name)
    return getattr(import_module(module_name), name)


def entry(module_name: str, name: str) -> str:
    """Return the section of one public name."""
    found = public_object(module_name, name)
    if inspect.isclass(found):
        body = class_body(module_name, name, found)
    elif inspect.isroutine(found):
        body = directive("function", f"{name}{signature(found)}", docstring(found), module_name)
    else:
        body = directive("data", name, assigned_docstring(module_name, name), module_name)
    return f"## {name}\n\n{body}"


def class_body(module_name: str, name: str, cls: type[Any]) -> str:
    """Return a class with the methods and properties that people use."""
    text = docstring(cls)
    if dataclasses.is_dataclass(cls):
        listed = ", ".join(field.name for field in dataclasses.fields(cls))
        head = f"{name}({listed})"
    elif "__init__" in vars(cls):
        head = f"{name}{signature(cls.__init__)}".removesuffix(" -> None")
    else:
        head = name
    members = [f"\n{text}"] if text else []
    documented = field_docstrings(cls)
    for field, (hint, words) in documented.items():
        members.append(directive("attribute", field, words, hint=hint))
    for member, value in vars(cls).items():
        if member.startswith("_") or member in documented:
            continue
        if isinstance(value, property):
            hint = returned(value.fget)
            members.append(directive("property", member, docstring(value), hint=hint))
        elif isinstance(value, classmethod | staticmethod):
            inner = value.__func__
            head_line = f"{member}{signature(inner)}"
            kind = "classmethod" if isinstance(value, classmethod) else "staticmethod"
            members.append(directive(kind, head_line, docstring(inner)))
        elif inspect.isfunction(value):
            members.append(directive("method", f"{member}{signature(value)}", docstring(value)))
    return directive("class", head, "\n".join(members), module_name)


def directive(
    kind: str, head: str, body: str, module_name: str | None = None, hint: str = ""
) -> str:
    """Return a directive of Sphinx's Python domain."""
    options = []
    if module_name:
        options.append(f":module: {module_name}\n")
    if hint:
        options.append(f":type: {hint}\n")
    # A fence has to be longer than those inside of it.
    longest = max((len(fence) for fence in re.findall(r"^`{3,}", body, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{{py:{kind}}} {head}\n{''.join(options)}\n{body}\n{fence}\n\n"


def signature(function: Any) -> str:
    """Return a function's signature as it stands in the code, with the names of type aliases."""
    node = definition(function)
    arguments = re.sub(r"^(self|cls)(, |$)", "", ast.unparse(Unquoted().visit(node.args)))
    return f"({arguments}) -> {returned(function)}"


class Unquoted(ast.NodeTransformer):
    """Takes annotations out of the quotes that Python needs for names it does not know yet."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Replace the annotation of an argument."""
        node.annotation = unquoted(node.annotation)
        return node


def unquoted(annotation: ast.expr | None) -> ast.expr | None:
    """Return an annotation without quotes."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def returned(function: Any) -> str:
    """Return the return type of a function as it stands in the code."""
    return type_text(definition(function).returns)


def type_text(annotation: ast.expr | None) -> str:
    """Return an annotation as text; a function without one returns None."""
    bare = unquoted(annotation)
    return ast.unparse(bare) if bare else "None"


def definition(function: Any) -> ast.FunctionDef:
    """Return the syntax tree of a function."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef), function
    return node


def docstring(found: Any) -> str:
    """Return a docstring as Markdown; indented blocks are code."""
    return "".join(_paragraphs(inspect.getdoc(found) or ""))


def _paragraphs(text: str) -> Iterator[str]:
    for block in text.split("\n\n"):
        if block.startswith((INDENT, ">>>")):
            yield f"```python\n{textwrap.dedent(block)}\n```\n\n"
        else:
            yield f"{plain(block)}\n\n"


def field_docstrings(cls: type[Any]) -> dict[str, tuple[str, str]]:
    """Return type and docstring of every public attribute that a class declares."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef), cls
    found = {}
    for at, node in enumerate(tree.body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if node.target.id.startswith("_"):
            continue
        following = tree.body[at + 1 :]
        words = string_of(following[0]) if following else ""
        found[node.target.id] = (type_text(node.annotation), plain(words))
    return found


def assigned_docstring(module_name: str, name: str) -> str:
    """Return the docstring below an assignment at the top of a module, such as a type alias."""
    for module in (module_name, *homes(module_name, name)):
        body = ast.parse(inspect.getsource(import_module(module))).body
        for node, following in zip(body, [*body[1:], None], strict=True):
            if name in assigned_names(node) and following is not None:
                return plain(string_of(following))
    return ""


def homes(module_name: str, name: str) -> Iterator[str]:
    """Yield the module that a public module imports a name from."""
    for node in ast.parse(inspect.getsource(import_module(module_name))).body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            yield str(node.module)


def assigned_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement assigns."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def string_of(node: ast.stmt) -> str:
    """Return the text of a statement that is nothing but a string, else nothing."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        value = node.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else ""
    return ""


def undocumented() -> list[str]:
    """Return the public names without a docstring, methods and properties of classes included."""
    missing = []
    for module_name in PUBLIC:
        for name in import_module(module_name).__all__:
            if name.startswith("__"):
                continue
            found = public_object(module_name, name)
            is_named = inspect.isclass(found) or inspect.isroutine(found)
            text = docstring(found) if is_named else assigned_docstring(module_name, name)
            if not text.strip():
                missing.append(f"{module_name}.{name}")
            if inspect.isclass(found):
                missing += [f"{module_name}.{name}.{member}" for member in _bare_members(found)]
    return missing


def _bare_members(cls: type[Any]) -> Iterator[str]:
    for member, value in vars(cls).items():
        is_member = inspect.isfunction(value) or isinstance(value, property)
        # A method that overrides another may leave the explanation to it, as `inspect` does.
        if is_member and not member.startswith("_") and not inspect.getdoc(getattr(cls, member)):
            yield member
