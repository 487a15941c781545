#!/usr/bin/env bash
# The commands that README.md, CONTRIBUTING.md, docs/ outside docs/lab/ and the examples' pages show: every flag must
# exist, and those that take no time and no other rank must run. Usage: documented.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

# One line each: where it is written, a tab, the arguments of muster. Code blocks and inline code; the text behind a
# redirection, a pipe or && is left out. Metavariables (MODEL, N) and ... are kept as they are.
python3 - "$root" >"$work/commands" <<'PYTHON'
import pathlib, re, shlex, sys

root = pathlib.Path(sys.argv[1])
pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md")), *sorted((root / "examples").rglob("*.md"))]
COMMAND = r"(?:^|&&\s*)(?:\$\s+)?(?:mpirun(?:\s+-\S+(?:\s+\d+)?)*\s+)?(?:build/bin/)?muster\s+((?:help\s+)?[a-z]+\b[^&|>#;]*)"
for page in pages:
    if "lab" in page.parts:
        continue
    fenced, joined = False, ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        texts = [line.strip()] if fenced else re.findall(r"`([^`]+)`", line)
        if fenced and line.endswith("\\"):
            joined += line[:-1].strip() + " "
            continue
        if fenced:
            texts, joined = [joined + texts[0]], ""
        for text in texts:
            for command in re.findall(COMMAND, text):
                words = shlex.split(command)
                print(f"{page.relative_to(root)}:{number}", shlex.join(words), sep="\t")
PYTHON
(($(wc -l <"$work/commands") > 20)) || fail "found only $(wc -l <"$work/commands") commands in the documentation"

cd "$work"
for folder in examples benchmarks data; do ln -s "$root/$folder" "$folder"; done

echo "== flags"
known=" $("$muster" help | sed -n '/^Subcommands:/,$p' | awk 'NR > 1 { printf "%s ", $1 }')"
while IFS=$'\t' read -r where arguments; do
  eval "words=($arguments)"
  command=${words[0]}
  if [[ $known != *" $command "* ]]; then
    fail "$where: there is no command '$command'"
    continue
  fi
  help=$("$muster" help "$command")
  for word in "${words[@]:1}"; do
    [[ $word == -* ]] || continue
    grep -qE -- "(^|[ ,])${word%%=*}([ ,]|$)" <<<"$help" || fail "$where: muster $command has no ${word%%=*}"
  done
done <commands

echo "== runs"
cut -f2 commands | sort -u | while read -r arguments; do
  eval "words=($arguments)"
  case ${words[0]} in
    plan | simulate | presets | info | help) ;;
    *) continue ;;
  esac
  skip=false
  for word in "${words[@]:1}"; do
    if [[ $word =~ ^[A-Z]+$ || $word == *...* ]]; then skip=true; fi                    # a metavariable
    if [[ $word == *.json && ! -e $word || $word == *.safetensors* ]]; then skip=true; fi  # the reader's own file
  done
  if ! $skip && [[ ${words[0]} == plan || ${words[0]} == simulate ]] && ((${#words[@]} < 3)); then skip=true; fi
  if $skip; then continue; fi
  echo "muster ${words[*]}"
  "$muster" "${words[@]}" >stdout 2>stderr || echo "muster ${words[*]}: $(head -c 500 stderr)" >>failed
done
if [[ -e failed ]]; then fail "$(cat failed)"; fi

finish
