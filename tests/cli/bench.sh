#!/usr/bin/env bash
# The contract of `muster bench`. Usage: bench.sh MUSTER
set -euo pipefail
. "$(dirname "$0")/support/checks.sh"

echo "== what it prints"
gives all "$muster" bench "$small" --ranks 3 --strategy all --waves 1,2 --json
holds '[s["strategy"] for s in all["strategies"]] == ["global", "global", "per_matrix", "chunked", "grouped",
  "megabatch", "routed", "layerwise"]'
holds 'not any({"strategy", "step_ms", "host_ms", "collectives", "messages", "bytes_sent_max", "kernels",
  "scratch_bytes_max", "bitwise_equal"} - set(s) for s in all["strategies"])'
holds '[s["waves"] for s in all["strategies"][:2]] == [1, 2]'
holds '__builtins__["all"](s["bitwise_equal"] is True and s["step_ms"] >= s["step_ms_min"] > 0 for s in all["strategies"])'
holds '__builtins__["all"](s["first_step_s"] > 0 and s["setup_s"] > 0 for s in all["strategies"])'
holds 'all["device"] == "cpu" and all["graph"] is False'
holds 'min(s["collectives"] for s in all["strategies"]) == all["strategies"][0]["collectives"] == 2'
gives flights "$muster" bench "$small" --ranks 3 --strategy global,grouped --waves 4 --in-flight 1,2,all --steps 2 --json
holds '[s["in_flight"] for s in flights["strategies"][:3]] == [1, 2, flights["strategies"][2]["waves"] - 1]'
holds 'len(flights["strategies"]) == 6 and __builtins__["all"](s["bitwise_equal"] for s in flights["strategies"])'
holds 'len({(s["collectives"], s["messages"], s["bytes_sent_max"]) for s in flights["strategies"][:3]}) == 1'
echo "== counts before and after: on two ranks an exchange is a send and a receive"
gives counts "$muster" bench "$small" --ranks 2 --steps 1 --strategy chunked,megabatch,global --waves 1 --json
holds '[s["exchanges_max"] for s in counts["strategies"]] == [s["collectives"] for s in counts["strategies"]]'
holds '__builtins__["all"](s["transfers_max"] == 2 * s["exchanges_max"] == s["messages"] for s in counts["strategies"])'
holds 'counts["strategies"][0]["exchanges_max"] > counts["strategies"][1]["exchanges_max"] > 2'
holds 'counts["strategies"][2]["exchanges_max"] == 2'
table=$("$muster" bench "$small" --ranks 2 --steps 2)
for part in 'small on 2 ranks (local)' 'medians of 2 steps' 'per_matrix' 'chunked' 'megabatch' 'global' 'speed-up'; do
  grep -qF -- "$part" <<<"$table" || fail "the table lacks: $part"
done

echo "== --trace"
gives traced "$muster" bench "$small" --ranks 2 --strategy megabatch,global --trace "$work/trace.json" --json
holds '{e["pid"] for e in trace["traceEvents"]} == {0, 1}'
holds '{e["ph"] for e in trace["traceEvents"]} == {"X", "M"}'
holds '{e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"} >= {"compute", "exchange"}'
holds 'len([e for e in trace["traceEvents"] if e.get("cat") == "step"]) == 4'
holds 'any(e.get("cat") == "exchange" and e["args"]["bytes"] > 0 for e in trace["traceEvents"])'

echo "== --html"
gives page "$muster" bench "$small" --ranks 2 --strategy megabatch,global --html "$work/page.html" --json
grep -q '</html>' "$work/page.html" || fail "--html"
python3 - "$work/page.html" >"$work/shown.json" <<'PYTHON'
import re, sys
print(re.search('id="data">(.*?)</script>', open(sys.argv[1]).read())[1])
PYTHON
holds '[t["name"] for t in shown["timelines"]] == ["megabatch", "global"]'
holds '[len(t["ranks"]) for t in shown["timelines"]] == [2, 2]'
holds '[m["strategy"] for m in shown["maps"]] == [s["strategy"] for s in page["strategies"]]'
holds '__builtins__["all"](f["value"] == s[f["key"]] for row, s in zip(shown["strategies"], page["strategies"])
  for f in row["figures"] if f["unit"] in ("bytes", "count"))'

echo "== over MPI"
if has_mpi; then
  for ranks in 1 2 4; do
    gives mpi on "$ranks" "$muster" bench "$small" --mesh "fsdp=$ranks" --steps 2 --json
    holds "mpi['comm'] == 'mpi' and mpi['ranks'] == $ranks and len(mpi['strategies']) == 4"
    holds '__builtins__["all"](s["bitwise_equal"] for s in mpi["strategies"])'
  done
  gives traced on 2 "$muster" bench "$small" --ranks 2 --strategy global --trace "$work/trace.json" --json
  holds '{e["pid"] for e in trace["traceEvents"]} == {0, 1}'
  refuses 2 '3 ranks, but mpirun started 2' on 2 "$muster" bench "$small" --ranks 3
else
  echo "skipped: no MPI"
fi

echo "== bad input"
refuses 2 '--strategy' "$muster" bench "$small" --ranks 2 --strategy global,fastest
refuses 2 '--waves' "$muster" bench "$small" --ranks 2 --waves 0.5
refuses 2 '--waves' "$muster" bench "$small" --ranks 2 --waves 2 --strategy per_matrix
refuses 2 '--steps' "$muster" bench "$small" --ranks 2 --steps 0
refuses 2 '--comm' "$muster" bench "$small" --ranks 2 --comm nccl
refuses 2 '--device' "$muster" bench "$small" --ranks 2 --device gpu
if ! has_gpu; then refuses 2 '--device' "$muster" bench "$small" --ranks 2 --device cuda; fi
refuses 2 '--graph' "$muster" bench "$small" --ranks 2 --graph on,off
refuses 2 '--graph' "$muster" bench "$small" --ranks 2 --graph off
refuses 2 '--coefficients' "$muster" bench "$small" --ranks 2 --coefficients ''
refuses 2 '--trace' "$muster" bench "$small" --ranks 2 --trace "$work/no/such/folder"
refuses 2 '--html' "$muster" bench "$small" --ranks 2 --html "$work/no/such/page.html"
refuses 2 '--cost' "$muster" bench "$small" --ranks 2 --cost "$work/none"
refuses 2 '--mesh' "$muster" bench "$small"

finish
