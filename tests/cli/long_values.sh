#!/usr/bin/env bash
# A value of 5,000 characters came back whole in the error that refuses it. Usage: long_values.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

python3 - "$muster" "$small" "$work" <<'PYTHON' || fail "errors that quote a long value whole"
import re
import subprocess
import sys

muster, model, work = sys.argv[1:]
LONG = ("x" * 5000, "9" * 5000, "1," * 2500 + "x")
SETTINGS = ("a=" + "9" * 5000, "a=" + "x" * 5000, "x" * 5000 + "=1")
MOST = 600  # a path is cut to 240, and names of what is known may follow
COMMANDS = {
    "plan": [model, "--ranks", "2"],
    "bench": [model, "--ranks", "2", "--steps", "1"],
    "verify": [model, "--ranks", "2", "--steps", "1"],
    "simulate": [model, "--ranks", "2", "--cluster", "h100-ib"],
    "train": ["--steps", "1", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16", "--batch", "8"],
    "tune": ["-o", f"{work}/cost.json"],
    "info": [],
    "presets": [],
    "help": [],
}
wrong = []
tried = 0


def run(arguments: list[str]) -> None:
    global tried
    tried += 1
    said = subprocess.run([muster, *arguments], capture_output=True, text=True)
    short = [argument if len(argument) < 80 else argument[:9] + "..." for argument in arguments]
    if said.returncode == 0:
        wrong.append(f"{short}: accepted")
    elif len(said.stderr) > MOST:
        wrong.append(f"{short}: {len(said.stderr)} bytes: {said.stderr[:80]}")


def without(arguments: list[str], flag: str) -> list[str]:
    if flag not in arguments:
        return arguments
    at = arguments.index(flag)
    return arguments[:at] + arguments[at + 2 :]


for command, given in COMMANDS.items():
    text = subprocess.run([muster, command, "--help"], capture_output=True, text=True, check=True).stdout
    for flag in re.findall(r"^  +(?:-\w,)?(--?[\w-]+) [A-Z][A-Z=,.]*  ", text, re.M):
        for value in LONG + (SETTINGS if flag in ("--set", "--mesh") else ()):
            run([command, *without(given, flag), flag, value])
            if flag == "--mesh":
                run([command, *without(given, "--ranks"), flag, value])
    for value in LONG:
        run([command, *given, value])
        if given[:1] == [model]:
            run([command, value, *given[1:]])
    run([command, *given, "--" + LONG[0]])
for value in LONG:
    run([value])
print(*wrong[:20], f"{len(wrong)} of {tried} errors are wrong", sep="\n")
sys.exit(bool(wrong) or tried < 300)
PYTHON

finish
