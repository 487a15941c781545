"""The documentation site, which `make docs` builds from the pages, the docstrings and the public headers."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

project = "Muster"
release = re.search(r'__version__ = "(.+)"', (ROOT / "python/muster/__init__.py").read_text())[1]
extensions = ["myst_parser", "sphinx.ext.napoleon", "autoapi.extension", "breathe"]

# Links between pages are relative paths in the repository, so its root is the root of the site, too.
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/**", "data/*.md", "benchmarks/results/*"]
exclude_patterns = ["build*", ".*"]

html_theme = "furo"
html_title = f"Muster {release}"
html_copy_source = False
myst_heading_anchors = 6  # as on the repository's own pages

# Docstrings are read from the source: PyTorch need not be installed.
autoapi_dirs = ["python/muster"]
autoapi_generate_api_docs = False  # docs/api/python.rst says which
autoapi_options = ["members", "inherited-members", "imported-members"]
autoapi_python_class_content = "class"

suppress_warnings = [
    "autoapi.python_import_resolution",  # muster._muster is compiled
    "duplicate_declaration.cpp",  # each header declares namespace muster
]

breathe_projects = {"muster": str(ROOT / "build/doxygen/xml")}
breathe_default_project = "muster"
breathe_default_members = ("members",)

# What the sidebar has in addition to the pages that docs/index.md lists.
FURTHER_PAGES = {
    "API": ["api/python", "api/cpp"],
    "Repository": ["../README", "../data/README", "../examples/*/README"],
    "Benchmark results": ["../benchmarks/results/*"],
    "Lab": ["lab/*"],
}


def add_sidebar(app, docname, source):
    """Puts the pages that docs/index.md lists into the sidebar, by its headings."""
    if docname != root_doc:
        return
    sections = {}
    for section in source[0].split("\n## ")[1:]:
        caption, _, text = section.partition("\n")
        listed = re.findall(r"\]\(((?!lab/)[\w./-]+)\.md(?:#[\w-]+)?\)", text)
        sections[caption] = list(dict.fromkeys(listed))
    for caption, pages in {**sections, **FURTHER_PAGES}.items():
        listed = "\n".join(pages)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{listed}\n```\n"


def link_folders(app, docname, source):
    """A link to a folder leads to its README; without one it is plain text."""

    def link(match):
        text, target = match.groups()
        folder = (ROOT / docname).parent / target
        if not folder.is_dir():
            return match[0]
        return f"[{text}]({target}/README.md)" if (folder / "README.md").exists() else text

    source[0] = re.sub(r"\[([^][]*)\]\(([^()\s:#]+)\)", link, source[0])


def inherit_members(app):
    """Gives each class the members of its base classes in this package, which sphinx-autoapi leaves out."""
    objects = app.env.autoapi_all_objects

    def members(cls):
        found = {child.name: child for base in cls.bases if base in objects for child in members(objects[base])}
        return list({**found, **{child.name: child for child in cls.children}}.values())

    for cls in [found for found in objects.values() if found.type in ("class", "exception")]:
        cls.children = members(cls)


FIELDS = {}  # docstrings of attributes, as they are written


def keep_field(app, what, name, obj, options, lines):
    """Napoleon takes what stands before a colon in the docstring of an attribute for its type; ours have no types."""
    if what in ("attribute", "property", "data"):
        FIELDS[name] = list(lines)


def restore_field(app, what, name, obj, options, lines):
    lines[:] = FIELDS.pop(name, lines)


def setup(app):
    app.connect("builder-inited", inherit_members, priority=900)
    app.connect("source-read", link_folders)
    app.connect("source-read", add_sidebar)
    app.connect("autodoc-process-docstring", keep_field, priority=100)
    app.connect("autodoc-process-docstring", restore_field, priority=900)
