#!/usr/bin/env python3
"""Draws the imports of the workspace: crates, and the files of one crate or folder. Fails if files import each other in a circle.

    scripts/modules.py                        the crates, as Graphviz text: | dot -Tsvg >crates.svg
    scripts/modules.py --picture              the crates, as the picture in docs/architecture.md; writes the picture there
    scripts/modules.py probes/src/engine      the files of a folder: a line each, lowest first
    scripts/modules.py --check                every crate: only the circles; and whether the picture is up to date

An import is a `use` of the crate's own modules, or a path that begins with `crate`. Tests do not count. A module's file imports its
submodules' files by the same rule; a `mod` line alone is no import.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

# Crates whose circles stay, with the reason.
LEFT = {
    "hyprobe-manifest": "the types of filters and aggregates parse themselves, by a parser that makes them",
    "hyprobe-rigs": "test programs, each in a folder of its own",
}

ROOT = Path(__file__).resolve().parent.parent

# The page with the picture, and the lines around it.
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- scripts/modules.py --picture -->\n", "<!-- end of the picture -->\n"


def workspace():
    """The crates: name, directory, and the names of the crates that each depends on."""
    command = [os.environ.get("CARGO", "cargo"), "metadata", "--no-deps", "--offline", "--format-version=1"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    return {
        package["name"]: (
            Path(package["manifest_path"]).parent,
            sorted({used["name"] for used in package["dependencies"] if used.get("path") and used["kind"] is None}),
        )
        for package in packages
    }


def product(text):
    """The source without comments, strings and unit tests."""
    text = re.sub(r"#\[cfg\(test\)\]\s*(pub(\([^)]*\))? )?mod \w+(;| \{.*)", "", text, flags=re.S if "mod tests {" in text else 0)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text, flags=re.S)


def paths_of(tree, prefix=()):
    """The paths of a `use` tree."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    names = [name for name in head.strip().split("::") if name]
    if not brace:
        yield (*prefix, *(name.split(" as ")[0].strip() for name in names))
        return
    depth, item = 0, ""
    for char in rest[: rest.rindex("}")] + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if item.strip():
                yield from paths_of(item, (*prefix, *names))
            item = ""
        else:
            item += char


def files_of(source):
    """The modules' files, by the modules' paths."""
    files = {}
    for file in sorted(source.rglob("*.rs")):
        place = file.relative_to(source).with_suffix("").parts
        if "tests" in place or place in (("main",), ("testing",), ("fuzzing",)):
            continue
        files[place[:-1] if place[-1] == "mod" else () if place == ("lib",) else place] = file
    return files


def imports(source):
    """The files that each file imports. A name that a module's file exports counts as the file that defines the name."""
    files = files_of(source)
    text = {module: product(file.read_text()) for module, file in files.items()}
    exports = {module: {} for module in files}

    def absolute(module, path):
        path = list(path)
        base = list(module)
        if path[0] == "crate":
            return path[1:]
        if path[0] == "self":
            return base + path[1:]
        if path[0] == "super":
            while path and path[0] == "super":
                path, base = path[1:], base[:-1]
            return base + path
        return base + path if (*module, path[0]) in files else None

    for module in files:
        for tree in re.findall(r"^\s*pub(?:\([^)]*\))? use ([^;]+);", text[module], re.M):
            for path in paths_of(tree):
                target = absolute(module, path)
                if target:
                    exports[module][path[-1]] = target

    def resolve(path, depth=0):
        for length in range(len(path), -1, -1):
            module = tuple(path[:length])
            if module in files:
                name = path[length] if length < len(path) else None
                if name in exports[module] and depth < 8:
                    return resolve(exports[module][name], depth + 1)
                return module
        return None

    graph = {}
    for module in files:
        found = set()
        trees = re.findall(r"(?<!pub )\buse ((?:crate|super|self|\w+)(?:::[^;]+)?);", text[module])
        for tree in trees + re.findall(r"\b(crate(?:::\w+)+)", re.sub(r"\buse [^;]+;", "", text[module])):
            for path in paths_of(tree):
                target = absolute(module, path)
                target = resolve(target) if target else None
                if target is not None and target != module and target != ():
                    found.add(target)
        graph[module] = found
    return graph


def circles(graph):
    """The sets of nodes that reach each other, after Tarjan."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            circle = []
            while not circle or circle[-1] != node:
                circle.append(stack.pop())
            if len(circle) > 1:
                found.append(sorted(circle))

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return found


def picture(crates):
    """The crates of the product as a Mermaid graph, without arrows to a crate that another arrow leads to."""
    short = {crate: "command" if crate == "hyprobe" else crate.removeprefix("hyprobe-") for crate in crates}
    used = {crate: set(wanted) for crate, (_, wanted) in crates.items()}

    def reached(crate):
        return used[crate].union(*map(reached, used[crate]))

    lines = ["```mermaid", "graph TD"]
    for crate in sorted(crates, key=lambda crate: (-len(reached(crate)), crate)):
        beyond = set().union(*map(reached, used[crate]))
        lines += [f"    {short[crate]} --> {short[other]}" for other in sorted(used[crate] - beyond)]
    return "\n".join([*lines, "```", ""])


def page_with(drawn):
    """The page's text, and the text with the picture `drawn`."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    return text, before + BEGIN + drawn + END + rest.split(END)[1]


def name(module):
    return "::".join(module) or "lib"


def main(arguments):
    crates = workspace()
    if not arguments:
        print("digraph hyprobe {")
        for crate, (_, wanted) in crates.items():
            for other in wanted:
                print(f'    "{crate}" -> "{other}";')
        print("}")
        return 0
    if arguments == ["--picture"]:
        PAGE.write_text(page_with(picture(crates))[1])
        return 0
    if arguments != ["--check"]:
        folder = (ROOT / arguments[0]).resolve()
        source = next(path for path in [folder, *folder.parents] if path.name == "src")
        within = folder.relative_to(source).parts
        graph = {
            module: {other for other in others if other[: len(within)] == within}
            for module, others in imports(source).items()
            if module[: len(within)] == within
        }
        told = set()
        while rest := [module for module in graph if module not in told]:
            lowest = [module for module in rest if graph[module] <= told] or rest
            for module in lowest:
                print(f"{name(module)} -> {' '.join(sorted(name(other) for other in graph[module])) or '-'}")
            told |= set(lowest)
        return bool(circles(graph))
    bad = 0
    drawn, now = page_with(picture(crates))
    if drawn != now:
        print(f"modules: the picture in {PAGE} is old: scripts/modules.py --picture", file=sys.stderr)
        bad += 1
    for crate, (path, _) in crates.items():
        if crate in LEFT:
            continue
        for circle in circles(imports(path / "src")):
            print(f"modules: {crate}: {', '.join(map(name, circle))} import each other", file=sys.stderr)
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
