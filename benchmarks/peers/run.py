"""Run the same FedAvg jobs on cafedcl and on the simulators one could use instead, and compare the
times.

    python benchmarks/peers/run.py --jobs a,b,c,digits --repeats 3

sets up an environment per peer in benchmarks/peers/.envs, runs every system on every job, one after
another and the whole sequence --repeats times, prints the ratios against cafedcl, and writes
benchmarks/results/peers.json.

    python benchmarks/peers/run.py --jobs d --peers plain --out benchmarks/results/peers-gpu.json

measures the job that runs on a CUDA GPU.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from driver import DEVICES, check_system, gpu
from jobs import JOBS, SCALES, JobError, data_file, find_job, make, save
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".envs"
RESULT = HERE.parent / "results" / "peers.json"
OURS = "ours"
SYSTEMS = (OURS, "plain", "flower", "pfl", "fluke", "fedlab", "fedjax")
HERE_TOO = (OURS, "plain")
"""Systems that need no environment of their own: they run in the one this script runs in."""
SERIAL = ("plain", "fluke")
"""PyTorch systems that train in one process; the others start a process per core, with one thread
each.
"""
BESIDE_GPU = {"threads": 1, "onednn": True}
"""How PyTorch is set where a GPU does the work."""
FAR_ACCURACY, FAR_LOSS, LEAST_LOSS = 0.1, 0.25, 0.02
"""How far a system's accuracy, and relatively its loss, may be from the median of all before it is
warned about.
"""
TRAINED = 0.5
"""The accuracy below which a network has learned too little for its accuracy to say anything."""

Run = dict[str, Any]
Setting = dict[str, Any]


def interpreter(system: str) -> Path:
    """Return the Python that runs a system's driver."""
    if system in HERE_TOO:
        return Path(sys.executable)
    return ENVIRONMENTS / system / ("Scripts" if os.name == "nt" else "bin") / "python"


def set_up(system: str, console: Console) -> str:
    """Make a peer's environment if it is not there as its requirements say; returns why that
    failed, or nothing.
    """
    if system in HERE_TOO:
        return ""
    home, wanted = ENVIRONMENTS / system, HERE / "requirements" / f"{system}.txt"
    stamp, mark = home / "requirements.sha256", hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == mark:
        return ""
    console.print(f"setting up {home} …", highlight=False)
    pip = [
        str(interpreter(system)),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    torch = [line for line in wanted.read_text().splitlines() if line.startswith("torch==")]
    steps = [[sys.executable, "-m", "venv", "--clear", str(home)]]
    steps += [[*pip, *torch]] if torch else []
    steps += [[*pip, "--requirement", str(wanted)]]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            return f"cannot be installed: {last_line(done.stderr)}"
    stamp.write_text(mark)
    return ""


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return next(
        (line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message"
    )


def reason(text: str) -> str:
    """Return the line of a driver's output that says why it failed: the last that names an error,
    else the last.
    """
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if line.lower().startswith("error:") or "Error: " in line[:60]]
    return errors[-1] if errors else last_line(text)


def calibrate(job: str, scale: str) -> list[Setting]:
    """Time one local step with every number of threads and library of kernels."""
    command = [sys.executable, str(HERE / "torch_model.py"), job, "--scale", scale]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise JobError(f"job {job}: a local step cannot be timed: {last_line(done.stderr)}")
    settings: list[Setting] = json.loads(done.stdout)
    return settings


def fastest(settings: Sequence[Setting], system: str, onednn: str) -> Setting:
    """Return the setting in which a system's local step is fastest; oneDNN may be prescribed.

    More threads must be a tenth faster than one, because they wait for each other whenever anything
    else runs.
    """
    fits = [s for s in settings if system in SERIAL or s["threads"] == 1]
    fits = [s for s in fits if onednn == "fastest" or s["onednn"] == (onednn == "on")]
    return min(fits, key=lambda s: s["milliseconds"] * (1.1 if s["threads"] > 1 else 1.0))


def launch(
    system: str, job: str, rounds: int, device: str, setting: Setting, scale: str, limit: float
) -> Run:
    """Run a driver in a process of its own; returns its result and the wall time, or why there is
    none.
    """
    run: Run = {"system": system, "job": job}
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "result.json"), Path(folder, "log")
        command = [
            str(interpreter(system)),
            str(HERE / f"drive_{system}.py"),
            job,
            "--rounds",
            str(rounds),
        ]
        command += [
            "--scale",
            scale,
            "--device",
            device,
            "--data",
            str(data_file(job, scale)),
            "--out",
            str(out),
        ]
        command += [
            "--threads",
            str(setting["threads"]),
            "--onednn",
            "on" if setting["onednn"] else "off",
        ]
        began = time.perf_counter()
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return run | {"failed": f"not done after {limit:g} s"}
            except KeyboardInterrupt:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        wall = time.perf_counter() - began
        if process.returncode or not out.exists():
            return run | {"failed": reason(log.read_text(encoding="utf-8", errors="replace"))}
        result: Run = json.loads(out.read_text(encoding="utf-8"))
        return result | {"wall": wall, "setting": setting}


def summarise(runs: Sequence[Run]) -> Run:
    """Return the numbers of one system on one job: medians over the repeats, or why there are none."""
    good = [run for run in runs if "failed" not in run]
    if not good:
        return {"failed": runs[-1]["failed"]}
    rounds = [median(run["seconds"][1:]) for run in good]
    return {
        "round": median(rounds),
        "rounds": rounds,
        "first": median(run["seconds"][0] for run in good),
        "wall": median(run["wall"] for run in good),
        "accuracy": median(run["accuracy"] for run in good),
        "loss": median(run["loss"] for run in good),
        "steps": good[-1]["steps"][-1],
        "cores": good[-1]["cores"],
        "failures": len(runs) - len(good),
    }


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Return every job's summaries with ratios against ours, its fastest peer, and the geometric
    mean over the jobs.

    A ratio is a system's seconds per round over ours: above 1, ours is faster.
    """
    table: dict[str, dict[str, Run]] = {}
    for job in dict.fromkeys(run["job"] for run in runs):
        mine = [run for run in runs if run["job"] == job]
        systems = dict.fromkeys(run["system"] for run in mine)
        table[job] = {s: summarise([run for run in mine if run["system"] == s]) for s in systems}
    leads: dict[str, dict[str, Any]] = {}
    for job, rows in table.items():
        ours = rows.get(OURS, {})
        if "round" not in ours:
            continue
        peers = {system: row for system, row in rows.items() if system != OURS and "round" in row}
        for row in [ours, *peers.values()]:
            row["ratio"], row["wall_ratio"] = (
                row["round"] / ours["round"],
                row["wall"] / ours["wall"],
            )
        if peers:
            best = min(peers, key=lambda system: peers[system]["round"])
            quickest = min(peers, key=lambda system: peers[system]["wall"])
            leads[job] = {
                "fastest": best,
                "ratio": peers[best]["ratio"],
                "fastest_wall": quickest,
                "wall_ratio": peers[quickest]["wall_ratio"],
            }
    means = {
        key: geometric_mean([lead[key] for lead in leads.values()])
        for key in ("ratio", "wall_ratio")
    }
    return {
        "jobs": table,
        "fastest_peer": leads,
        "geometric_mean": means,
        "warnings": doubts(table),
    }


def geometric_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean, of at least one number."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def doubts(table: dict[str, dict[str, Run]]) -> list[str]:
    """Return what suggests that a system did not do the same work as the others."""
    found = []
    for job, rows in table.items():
        good = {system: row for system, row in rows.items() if "round" in row}
        if not good:
            continue
        accuracy, loss = (median(row[key] for row in good.values()) for key in ("accuracy", "loss"))
        steps = median(row["steps"] for row in good.values())
        for system, row in good.items():
            guesses = accuracy >= TRAINED and abs(row["accuracy"] - accuracy) > FAR_ACCURACY
            if guesses or abs(row["loss"] - loss) > FAR_LOSS * loss + LEAST_LOSS:
                found.append(
                    f"job {job}: {system} ends with accuracy {row['accuracy']:.3f} and loss {row['loss']:.3f}, "
                    f"the median of all is {accuracy:.3f} and {loss:.3f}"
                )
            if row["steps"] != steps:
                found.append(
                    f"job {job}: {system} did {row['steps']} steps per round, the median of all is {steps:g}"
                )
    return found


def show(comparison: dict[str, Any], console: Console) -> None:
    """Print the tables and the warnings."""
    for job, rows in comparison["jobs"].items():
        best = comparison["fastest_peer"].get(job, {}).get("fastest")
        table = Table(title=f"job {job}: fastest peer marked *", title_justify="left")
        for title in (
            "system",
            "s/round",
            "× ours",
            "first",
            "wall",
            "× ours",
            "acc.",
            "loss",
            "steps",
        ):
            table.add_column(title, justify="left" if title == "system" else "right", no_wrap=True)
        for system, row in rows.items():
            name = f"{system} *" if system == best else system
            if "failed" in row:
                table.add_row(name, *8 * ["–"])
                continue
            ratios = [f"{row[key]:.2f}" if key in row else "–" for key in ("ratio", "wall_ratio")]
            table.add_row(
                name,
                f"{row['round']:.3f}",
                ratios[0],
                f"{row['first']:.2f}",
                f"{row['wall']:.1f}",
                ratios[1],
                f"{row['accuracy']:.3f}",
                f"{row['loss']:.3f}",
                str(row["steps"]),
            )
        console.print(table)
        for system, row in rows.items():
            if "failed" in row:
                console.print(f"{system}: {row['failed']}", highlight=False, markup=False)
    for key, what in (("ratio", "seconds per round"), ("wall_ratio", "wall time of the whole job")):
        if mean := comparison["geometric_mean"][key]:
            console.print(
                f"{what}, fastest peer / ours, geometric mean over the jobs: [bold]{mean:.2f}[/]"
            )
    for warning in comparison["warnings"]:
        console.print(f"[yellow]warning:[/] {warning}", highlight=False)


def machine() -> dict[str, Any]:
    """Return what is known of this machine."""
    available = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": len(available),
        "load": load,
    }


def names(text: str, known: Sequence[str], what: str) -> list[str]:
    """Return the names in a list separated by commas."""
    given = [name.strip() for name in text.split(",") if name.strip()]
    wrong = [name for name in given if name not in known]
    if wrong or not given:
        raise JobError(
            f"{what} {text!r}: one or more of {', '.join(known)} is expected, separated by commas"
        )
    return list(dict.fromkeys(given))


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Set everything up and run all systems on all jobs."""
    jobs = names(arguments.jobs, list(JOBS), "--jobs")
    systems = [OURS, *(s for s in names(arguments.peers, SYSTEMS, "--peers") if s != OURS)]
    if arguments.repeats < 1:
        raise JobError(f"--repeats {arguments.repeats}: at least 1 is needed")
    if arguments.rounds is not None and arguments.rounds < 2:
        raise JobError(
            f"--rounds {arguments.rounds}: the first round is a warm-up, so at least 2 are needed"
        )
    found = {name: find_job(name, arguments.scale) for name in jobs}
    devices = {name: str(arguments.device or found[name].device) for name in jobs}
    for job in jobs:
        for system in systems:
            check_system(system, found[job], devices[job])
    before, broken = machine(), {}
    gpus = {name: {"gpu": gpu()} if device == "cuda" else {} for name, device in devices.items()}
    for system in systems:
        if problem := set_up(system, console):
            broken[system] = problem
            console.print(f"{system}: {problem}", highlight=False)
    settings: dict[str, list[Setting]] = {}
    for job in jobs:
        path = data_file(job, arguments.scale)
        if not path.exists():
            save(make(found[job]), path)
        settings[job] = [] if devices[job] == "cuda" else calibrate(job, arguments.scale)
    runs: list[Run] = []
    for repeat in range(arguments.repeats):
        for job in jobs:
            rounds = arguments.rounds or found[job].rounds
            for system in systems:
                if system in broken:
                    runs.append(
                        {"system": system, "job": job, "repeat": repeat, "failed": broken[system]}
                    )
                    continue
                timed = settings[job]
                setting = fastest(timed, system, arguments.onednn) if timed else BESIDE_GPU
                run = launch(
                    system, job, rounds, devices[job], setting, arguments.scale, arguments.timeout
                )
                runs.append(run | {"repeat": repeat})
                said = (
                    run.get("failed")
                    or f"{median(run['seconds'][1:]):.3f} s per round, {run['wall']:.1f} s in all"
                )
                console.print(
                    f"repeat {repeat + 1}, job {job}, {system}: {said}",
                    highlight=False,
                    markup=False,
                )
    command = shlex.join(["python", "benchmarks/peers/run.py", *sys.argv[1:]])
    about = {
        job: {"command": command, "machine": before | gpus[job], "local_step": settings[job]}
        for job in jobs
    }
    return {"measured": about, **compare(runs), "runs": runs}


def together(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a result with what an older one has of other jobs."""
    kept = [run for run in old["runs"] if run["job"] not in new["measured"]]
    runs = [*kept, *new["runs"]]
    return {"measured": {**old["measured"], **new["measured"]}, **compare(runs), "runs": runs}


def main() -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    anywhere = ",".join(name for name, job in JOBS.items() if job.device == "cpu")
    parser.add_argument(
        "--jobs",
        default=anywhere,
        help="which jobs, separated by commas; all on a CPU if not given",
    )
    parser.add_argument(
        "--peers", default=",".join(SYSTEMS[1:]), help="which systems besides ours, by commas"
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of every run; each job's own number if not given"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--timeout", type=float, default=3600, help="seconds after which a run is given up"
    )
    parser.add_argument(
        "--onednn",
        choices=("fastest", "on", "off"),
        default="fastest",
        help="PyTorch peers' kernels",
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="where the clients train; each job's own if not given"
    )
    parser.add_argument(
        "--scale", choices=SCALES, default="full", help="tiny: only to see whether everything works"
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument(
        "--add", action="store_true", help="keep what the result file has of other jobs"
    )
    arguments = parser.parse_args()
    console = Console()
    try:
        result = measure(arguments, console)
        if arguments.add:
            result = together(json.loads(arguments.out.read_text(encoding="utf-8")), result)
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except JobError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing was written")
    show(result, console)
    console.print(f"written to {arguments.out}", highlight=False)


if __name__ == "__main__":
    main()
