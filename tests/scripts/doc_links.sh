#!/usr/bin/env bash
# Every relative link of the documents leads to a file, and every path in backquotes that looks like one of ours exists.
# So does every test that is named as `path::Suite.Name` or `path::test_name`.
set -euo pipefail
cd "$(dirname "$0")/../.."
python3 - <<'PYTHON'
import pathlib, re, sys

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:src|tools|include|python|tests|docs|scripts|examples|benchmarks|cmake|presets|data|reference|fuzz)/[\w./-]*\w)`")
TEST = re.compile(r"`((?:python/)?tests/[\w./-]+\w)::(?:(\w+)\.)?(\w+)`")
bad, tests = [], 0
pages = sorted(p for p in pathlib.Path(".").rglob("*.md") if not p.parts[0].startswith(("build", ".")))
for page in pages:
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for link in LINK.findall(line):
            if not (page.parent / link).exists():
                bad.append(f"{page}:{number}: the link {link} leads nowhere")
        # History may name what is gone.
        if page.name == "CHANGELOG.md" or page.parts[:2] == ("benchmarks", "results") or "lab" in page.parts:
            continue
        for path in PATH.findall(line):
            if not pathlib.Path(path).exists() and not list(pathlib.Path(".").glob(path + ".*")):
                bad.append(f"{page}:{number}: there is no {path}")
        for path, suite, name in TEST.findall(line):
            tests += 1
            path = pathlib.Path(path)
            wanted = rf"TEST(?:_[FP])?\({suite}, {name}\)" if suite else rf"def {name}\("
            if not path.exists() or not re.search(wanted, path.read_text()):
                bad.append(f"{page}:{number}: {path} has no test {name}")
if tests < 20:
    bad.append(f"only {tests} names of tests were found")
if len(pages) < 10:
    bad.append(f"only {len(pages)} pages were found")
print("\n".join(bad) or f"links and paths of {len(pages)} pages and {tests} tests that they name exist")
sys.exit(bool(bad))
PYTHON
