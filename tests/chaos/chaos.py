"""Disturbs training at random moments, and checks that nothing hangs and no bit differs.

    chaos.py PROGRAM (--minutes M | --seed SEED) [--comms local,mpi,gloo,nccl]

A trial goes on from a checkpoint of undisturbed training, on other ranks and cut differently, and one or two ranks are
killed, stopped, delayed or crash, in a given operation of a given phase. After it
- every rank must have ended, within a limit that follows from the timeout: else it hangs;
- no rank may have met another error than CommError, and a process of threads that nothing killed must exit with 0;
- the checkpoint must load, be at least as new as the last save that had returned, and have the bits of undisturbed
  training after as many steps.
A trial that fails prints its seed, and --seed repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path

TIMEOUT = 3.0  # seconds that a rank waits for another
SLACK = 90.0  # seconds for everything else on a busy machine: starting, computing, ending
STEPS = 24
EVERY = 3
PHASES = {"step": 40, "overlap": 40, "save": 12, "load": 10, "reconnect": 6}  # operations that a fault chooses from


class Trial:
    """What happens in one trial: a function of its seed alone."""

    def __init__(self, seed: int, comms: list[str]) -> None:
        dice = random.Random(seed)
        self.seed = seed
        self.comm = dice.choice(comms)
        self.ranks = dice.choice([2, 3, 4])
        self.cut = dice.randrange(4)
        self.begin = EVERY * dice.randrange(STEPS // EVERY)  # the step of the checkpoint that it goes on from; 0: none
        # Processes of NCCL and Gloo that lost their ranks end; the next trial is how they go on.
        reconnects = self.comm in ("local", "mpi")
        self.phase = dice.choice([phase for phase in PHASES if reconnects or phase != "reconnect"])
        self.overlap = self.phase == "overlap" or (self.phase != "step" and dice.random() < 0.5)
        if self.phase == "load" and self.begin == 0:
            self.begin = EVERY
        self.action = dice.choice(["kill", "stop", "delay", "crash"])
        if self.phase == "reconnect":
            # Something must lead to it.
            self.action = dice.choice(["kill", "stop", "delay"])
        if self.comm == "local" and self.action == "stop":
            self.action = "delay"  # a stopped process stops all its ranks
        if self.comm != "local" and self.action == "crash":
            self.action = "kill"
        self.short = dice.random() < 0.5  # a delay within the timeout, or beyond it
        self.seconds = dice.uniform(0.05, 0.5) if self.short else dice.uniform(1.3, 2.5) * TIMEOUT
        rank = dice.randrange(self.ranks)
        moment = 0 if dice.random() < 0.5 else dice.randrange(3000)  # microseconds after the operation has begun
        if self.action == "delay":
            moment = int(self.seconds * 1e6)
        phase = "step" if self.phase == "overlap" else self.phase
        self.faults = [f"{rank}:{phase}:{dice.randrange(PHASES[self.phase])}:{self.action}:{moment}"]
        if self.phase == "reconnect":
            first = "crash" if self.comm == "local" else "delay"
            late = int(1.3 * TIMEOUT * 1e6)
            self.faults.append(f"{dice.randrange(self.ranks)}:step:{dice.randrange(20)}:{first}:{late}")
        self.recover = reconnects

    @property
    def kind(self) -> str:
        length = "" if self.action in ("kill", "crash") else " short" if self.short else " long"
        return f"{self.comm:5} {self.phase:9} {self.action}{length}"

    def arguments(self, directory: Path, steps: int) -> list[str]:
        return [
            f"comm={self.comm}", f"ranks={self.ranks}", f"cut={self.cut}", f"dir={directory}", f"steps={steps}",
            f"every={EVERY}", f"overlap={int(self.overlap)}", f"timeout={int(TIMEOUT * 1000)}",
            f"recover={int(self.recover)}", *self.faults,
        ]  # fmt: skip


class Launch:
    """The processes of a trial. ``lines`` has what its ranks have said."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.lines: list[str] = []
        self._timers: list[threading.Timer] = []

    def heard(self, line: str) -> None:
        self.lines.append(line)
        stopping = re.match(r"rank \d+: stopping (\d+)", line)
        if stopping:
            timer = threading.Timer(self.trial.seconds, _continue, [int(stopping[1])])
            timer.start()
            self._timers.append(timer)

    def wait(self, limit: float) -> bool:
        """False if they are not over in time."""
        raise NotImplementedError

    def end(self) -> None:
        """Ends what still runs."""
        for timer in self._timers:
            timer.cancel()

    def status(self) -> int:
        """The exit status, once they are over; 0 if it says nothing about the ranks."""
        return 0


class Command(Launch):
    """Threads of a process, or processes of mpirun."""

    def __init__(self, trial: Trial, command: list[str]) -> None:
        super().__init__(trial)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.heard(line.rstrip("\n"))

    def wait(self, limit: float) -> bool:
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            return False
        self._thread.join(10)
        return True

    def status(self) -> int:
        # That of mpirun is not zero if a rank was killed, and with --enable-recovery zero if another rank failed.
        return self._process.wait() if self.trial.comm == "local" else 0

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for line in self.lines:  # ranks outlive mpirun if it is killed
            own = re.match(r"rank \d+: runs in (\d+)", line)
            command = Path(f"/proc/{own[1]}/cmdline") if own else None
            if own and command and command.exists() and b"muster-chaos-" in command.read_bytes():
                _signal(int(own[1]), signal.SIGKILL)
        super().end()


class Gloo(Launch):
    """Processes that are forked from one that has imported PyTorch."""

    def __init__(self, trial: Trial, arguments: list[str], store: str) -> None:
        super().__init__(trial)
        self._processes, self._pipes = [], []
        for rank in range(trial.ranks):
            mine, theirs = _context.Pipe(duplex=False)
            values, faults = _split(arguments)
            process = _context.Process(target=_gloo_train, args=(values, faults, rank, store, theirs))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)

    def wait(self, limit: float) -> bool:
        end = time.monotonic() + limit
        pipes = list(self._pipes)
        while pipes and time.monotonic() < end:
            for pipe in wait(pipes, 0.2):
                try:
                    self.heard(pipe.recv())
                except (EOFError, OSError):
                    pipes.remove(pipe)
        for process in self._processes:
            process.join(max(0.0, end - time.monotonic()))
        return not any(process.is_alive() for process in self._processes)

    def end(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        super().end()


_context = multiprocessing.get_context("forkserver")


def _split(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    values = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    return values, [argument for argument in arguments if "=" not in argument]


def _gloo_train(*args) -> None:
    import gloo_rank

    gloo_rank.train(*args)


def _gloo_alone(*args) -> None:
    import gloo_rank

    gloo_rank.alone(*args)


class Programs:
    """Starts trials, and what precedes and judges them."""

    def __init__(self, program: str, comms: list[str]) -> None:
        self.program = program
        self.expected = {"cpp": _steps(self._output([program, "reference", f"steps={STEPS}"]))}
        if "gloo" in comms:
            # Not gloo_rank: the server looks for modules that are installed only.
            _context.set_forkserver_preload(["torch.distributed.tensor.parallel", "muster.torch"])
            self.expected["gloo"] = _steps(self._alone("reference", {"steps": str(STEPS)}))

    def _output(self, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SLACK, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: status {done.returncode}: {done.stdout} {done.stderr}")
        return done.stdout

    def _alone(self, mode: str, values: dict[str, str]) -> str:
        mine, theirs = _context.Pipe(duplex=False)
        process = _context.Process(target=_gloo_alone, args=(mode, values, theirs))
        process.start()
        theirs.close()
        try:
            text = mine.recv() if mine.poll(SLACK) else "wrong it hangs"
        except EOFError:
            text = "wrong it died"
        process.kill()
        process.join()
        if text.startswith("wrong"):
            raise Failed(f"gloo {mode}: {text}")
        return text

    def prepare(self, trial: Trial, directory: Path) -> None:
        """Undisturbed training up to the step that the trial begins with."""
        if trial.begin == 0:
            return
        plain = Trial(trial.seed, [trial.comm])
        plain.ranks, plain.cut, plain.faults, plain.recover = 2, 1, [], False
        plain.comm = "gloo" if trial.comm == "gloo" else "local"
        launch = self.start(plain, directory, trial.begin)
        try:
            if not launch.wait(SLACK) or launch.status() != 0 or sum(" done" in line for line in launch.lines) != 2:
                raise Failed("undisturbed training fails\n" + "\n".join(launch.lines))
        finally:
            launch.end()

    def check(self, trial: Trial, directory: Path) -> dict[int, str]:
        if trial.comm == "gloo":
            return _steps(self._alone("check", {"dir": str(directory)}))
        arguments = [f"dir={directory}", f"ranks={1 + trial.seed % 3}", f"cut={trial.seed % 4}"]
        return _steps(self._output([self.program, "check", *arguments]))

    def start(self, trial: Trial, directory: Path, steps: int = STEPS) -> Launch:
        arguments = trial.arguments(directory, steps)
        if trial.comm == "gloo":
            return Gloo(trial, arguments, str(directory.parent / f"store-{steps}-{trial.begin}-{len(trial.faults)}"))
        command = [self.program, "train", *arguments]
        if trial.comm in ("mpi", "nccl"):
            command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root", "--enable-recovery",
                       "-n", str(trial.ranks), *command]  # fmt: skip
        return Command(trial, command)


class Failed(Exception):
    """A trial went wrong; the text says how."""


def _steps(text: str) -> dict[int, str]:
    return {int(step): value for step, value in re.findall(r"^step (\d+) (\w+)$", text, re.M)}


def _signal(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def _continue(process: int) -> None:
    # A rank says that it stops, and then stops: a single SIGCONT could come before that and be lost.
    for _ in range(20):
        _signal(process, signal.SIGCONT)
        time.sleep(0.1)


def run_trial(programs: Programs, trial: Trial, totals: Counter[str]) -> None:
    """Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="muster-chaos-") as folder:
        directory = Path(folder) / "checkpoint"
        programs.prepare(trial, directory)
        launch = programs.start(trial, directory)
        # Each fault may cost a timeout to notice, and another for the new communicator; and it takes its own time.
        limit = SLACK + len(trial.faults) * (2 * TIMEOUT + trial.seconds) + 2 * TIMEOUT
        try:
            if not launch.wait(limit):
                totals["hangs"] += 1
                raise Failed(f"hangs: not over after {limit:.0f} s")
            judge(programs, trial, directory, launch, totals)
        except Failed as failed:
            raise Failed(f"{failed}\n" + "\n".join(launch.lines)) from None
        finally:
            launch.end()


def judge(programs: Programs, trial: Trial, directory: Path, launch: Launch, totals: Counter[str]) -> None:
    text = "\n".join(launch.lines)
    if re.search(r"^rank \d+: wrong ", text, re.M):
        raise Failed("an error other than CommError")
    struck = "struck" in text
    totals["struck"] += struck
    killed = {int(fault.split(":")[0]) for fault in trial.faults if ":kill:" in fault}
    if launch.status() not in ([0, -signal.SIGKILL] if struck and killed else [0]):
        raise Failed(f"exit status {launch.status()}")
    for rank in range(trial.ranks):
        ended = re.search(rf"^rank {rank}: (done|lost) ?(.*)$", text, re.M)
        if ended is None and not (struck and killed and (trial.comm == "local" or rank in killed)):
            raise Failed(f"rank {rank} did not say how it ended")
        if ended is not None and ended[1] == "done" and ended[2] and ended[2] != programs.expected[_of(trial)][STEPS]:
            totals["differing bits"] += 1
            raise Failed(f"rank {rank}: other bits in the end")
        if ended is not None and ended[1] == "lost" and not struck:
            raise Failed(f"rank {rank} failed by itself")
    saved = max([trial.begin, *(int(step) for step in re.findall(r"^rank 0: saved (\d+)$", text, re.M))])
    if saved == 0 and not (directory / "muster.index.json").exists():
        return
    ((step, value),) = programs.check(trial, directory).items()
    if step < saved:
        raise Failed(f"the checkpoint is of step {step}, but step {saved} had been saved")
    if programs.expected[_of(trial)].get(step) != value:
        totals["differing bits"] += 1
        raise Failed(f"other bits in the checkpoint of step {step}")


def _of(trial: Trial) -> str:
    return "gloo" if trial.comm == "gloo" else "cpp"


def choose_comms() -> list[str]:
    comms = ["local"]
    if shutil.which("mpirun") and os.environ.get("MUSTER_TEST_MPI") != "off":
        comms.append("mpi")
        if shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0:
            comms.append("nccl")
    else:
        print("chaos: skipped over MPI: mpirun is not installed")
    found = subprocess.run([sys.executable, "-c", "import torch, muster.torch"], capture_output=True, check=False)
    if found.returncode == 0:
        comms.append("gloo")
    else:
        print("chaos: skipped over Gloo: this Python has no muster.torch (make test-torch installs it)")
    return comms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="chaos_rank of the build")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, help="repeat this trial only")
    parser.add_argument("--comms", help="of local, mpi, gloo and nccl; default: all that work here")
    arguments = parser.parse_args()
    # Two cores, also where there are more: ranks then take turns at many points, and a test takes no more of a machine.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    comms = arguments.comms.split(",") if arguments.comms else choose_comms()
    programs = Programs(arguments.program, comms)
    end = time.monotonic() + 60 * arguments.minutes
    seeds = [arguments.seed] if arguments.seed is not None else iter(lambda: random.SystemRandom().randrange(10**9), -1)
    kinds: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    failures: list[int] = []
    for seed in seeds:
        trial = Trial(seed, comms)
        if arguments.seed is not None:
            print(f"chaos: {trial.kind}, {trial.ranks} ranks, from step {trial.begin}: {' '.join(trial.faults)}")
        kinds[trial.kind] += 1
        try:
            run_trial(programs, trial, totals)
        except (Failed, subprocess.TimeoutExpired, ValueError) as failed:
            failures.append(seed)
            print(f"chaos: FAILED: {trial.kind}, {' '.join(trial.faults)}: {failed}")
            print(f"chaos: repeat it with: make chaos SEED={seed} COMMS={','.join(comms)}", flush=True)
        if time.monotonic() > end or len(failures) >= 5:
            break
    for kind, count in sorted(kinds.items()):
        print(f"chaos: {count:4} {kind}")
    print(
        f"chaos: {sum(kinds.values())} trials, {totals['struck']} of them struck; {totals['hangs']} hangs; "
        f"{totals['differing bits']} with differing bits; {len(failures)} failed"
    )
    if sum(kinds.values()) >= 10 and not totals["struck"]:
        print("chaos: FAILED: no fault struck")
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
