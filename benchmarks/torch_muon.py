"""Times a step of torch.optim.Muon on the CPU, in turns with step_bench, and prints one table.

What torch does is not the same step: it orthogonalizes in bf16, with five equal steps, and has no NorMuon and no cautious
decay. Run by benchmarks/step.
"""

import argparse
import json
import statistics
import subprocess
import time

import torch

# A quarter of the depth of GPT-2, as in usual_way.h.
WORKLOAD = [((768, 768), 12), ((3072, 768), 3), ((768, 3072), 3)]


def torch_step():
    torch.manual_seed(7)
    parameters = []
    for shape, count in WORKLOAD:
        for _ in range(count):
            parameter = torch.nn.Parameter(0.02 * torch.randn(shape))
            parameter.grad = torch.randn(shape)
            parameters.append(parameter)
    return torch.optim.Muon(parameters, lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True).step


def timed(step):
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    return time.perf_counter() - wall, time.process_time() - cpu


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--bench", required=True, help="the step_bench program")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--rounds", type=int, default=7)
    arguments = arguments.parse_args()
    torch.set_num_threads(arguments.threads)

    step = torch_step()
    step()
    torch_seconds, torch_cpu, rounds = [], [], []
    for _ in range(arguments.rounds):
        command = [arguments.bench, "--json", "--rounds", "1", "--threads", str(arguments.threads)]
        rounds.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        wall, cpu = timed(step)
        torch_seconds.append(wall)
        torch_cpu.append(cpu)

    rows = []
    for way in range(len(rounds[0]["ways"])):
        ways = [r["ways"][way] for r in rounds]
        rows.append((ways[0]["name"], ways[0]["flops"], [w["seconds"][0] for w in ways], [w["cpu_seconds"][0] for w in ways]))
    # The products of the standard form, which is torch's.
    rows.append(("torch.optim.Muon", rows[-1][1], torch_seconds, torch_cpu))

    print(f"{arguments.threads} threads, {arguments.rounds} rounds, torch {torch.__version__}; least / median of the rounds")
    for clock, column, scale in (("wall", 2, 1), ("cpu", 3, arguments.threads)):
        peaks = [r["peaks"][0][clock] for r in rounds]
        usual = next(row for row in rows if row[0] == "usual way")[column]
        print()
        print(f"{clock} time; sgemm peak {max(peaks) / 1e9:.1f} GFLOP/s, median {statistics.median(peaks) / 1e9:.1f}")
        print("| | time, s | GFLOP | GFLOP/s | share of the sgemm peak | against the usual way | bound, s |")
        print("|---|---|---|---|---|---|---|")
        for row in rows:
            name, flops, times = row[0], row[1], row[column]
            rate = scale * flops / min(times)
            share = statistics.median(scale * flops / t / p for t, p in zip(times, peaks))
            speedup = statistics.median(u / t for u, t in zip(usual, times))
            bf16 = name.startswith("torch")
            shares = "(bf16)" if bf16 else f"{100 * rate / max(peaks):.1f} / {100 * share:.1f} %"
            bound = "" if bf16 else f"{scale * flops / max(peaks):.3f}"
            print(f"| {name} | {min(times):.3f} / {statistics.median(times):.3f} | {flops / 1e9:.1f} | {rate / 1e9:.1f} | {shares} "
                  f"| {min(usual) / min(times):.2f} / {speedup:.2f} | {bound} |")


main()
