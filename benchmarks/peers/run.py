"""Run the same FedAvg jobs on cafedcl and on other simulators, and compare the times.

    python benchmarks/peers/run.py --jobs a,b,c,digits --repeats 3

sets up an environment per peer in benchmarks/peers/.envs, runs every system on every job, one after
another and the whole sequence --repeats times, prints the ratios against cafedcl, and writes
benchmarks/results/peers.json.

    python benchmarks/peers/run.py --jobs d --peers plain,flower,pfl,fluke,fedlab \\
        --wheels wheels --out benchmarks/results/peers-gpu.json

measures the job that runs on a CUDA GPU, on a machine that has PyTorch but no network.
"""

import argparse
import hashlib
import json
import os
import platform
import shlex
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from comparison import OURS, Run, compare, show
from driver import CPU_ONLY, DEVICES, GPU_SHARE, check_share, check_system, cores, gpu
from jobs import JOBS, SCALES, JobError, data_file, find_job, make, save
from rich.console import Console

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".envs"
RESULT = HERE.parent / "results" / "peers.json"
SYSTEMS = (OURS, "plain", "flower", "pfl", "fluke", "fedlab", "fedjax")
HERE_TOO = (OURS, "plain")
"""Systems that run in this script's environment; the others have their own."""
SERIAL = ("plain", "fluke")
"""PyTorch systems that train in one process; others use a process per core with one thread."""
AVERAGE_ON_CPU = ("fluke", "fedlab")
"""Systems that average models in main memory even if a GPU trains them, with PyTorch's threads."""

Setting = dict[str, Any]


def interpreter(system: str) -> Path:
    """Return the Python that runs a system's driver."""
    if system in HERE_TOO:
        return Path(sys.executable)
    return ENVIRONMENTS / system / ("Scripts" if os.name == "nt" else "bin") / "python"


def set_up(system: str, wheels: Path | None, console: Console) -> str:
    """Make a peer's environment unless it is up to date; return why that failed, or nothing.

    With a folder of wheels, pip installs from there alone, and the environment sees the packages of
    this script's environment too.
    """
    if system in HERE_TOO:
        return ""
    home = ENVIRONMENTS / system
    if wheels is None:
        wanted = HERE / "requirements" / f"{system}.txt"
        steps = from_network(home, system, wanted)
    else:
        wanted = HERE / "requirements" / "wheels" / f"{system}.txt"
        steps = from_wheels(home, system, wanted, wheels)
    stamp = home / "requirements.sha256"
    mark = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == mark:
        return ""
    console.print(f"setting up {home} …", highlight=False)
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            return f"cannot be installed: {last_line(done.stderr)}"
    if wheels is not None:
        show_packages(home)
    stamp.write_text(mark)
    return ""


def from_network(home: Path, system: str, wanted: Path) -> list[list[str]]:
    """Return the commands that install everything that a peer needs."""
    pip = [str(interpreter(system)), "-m", "pip", "install"]
    pip += ["--quiet", "--disable-pip-version-check"]
    torch = [line for line in wanted.read_text().splitlines() if line.startswith("torch==")]
    steps = [[sys.executable, "-m", "venv", "--clear", str(home)]]
    if torch:
        steps.append([*pip, *torch])
    steps.append([*pip, "--requirement", str(wanted)])
    return steps


def from_wheels(home: Path, system: str, wanted: Path, wheels: Path) -> list[list[str]]:
    """Return the commands that install a peer beside the packages that this machine has.

    The pip of this environment is used, because Python may come without the pip for new ones.
    """
    pip = [sys.executable, "-m", "pip", "--python", str(interpreter(system)), "install"]
    pip += ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    return [
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)],
        [*pip, "--find-links", str(wheels / system), "--requirement", str(wanted)],
    ]


def show_packages(home: Path) -> None:
    """Let an environment see this one's packages, after its own.

    `venv --system-site-packages` would not do: from within an environment, it shows the packages of
    the Python that the environment was made with.
    """
    folders = [folder for folder in site.getsitepackages() if Path(folder).is_dir()]
    lines = [f"import site; site.addsitedir({folder!r})\n" for folder in folders]
    bases = {"base": str(home), "platbase": str(home)}
    own = Path(sysconfig.get_path("purelib", "venv", bases))
    (own / "packages_of_the_runner.pth").write_text("".join(lines), encoding="utf-8")


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next(
        (line.strip() for line in reversed(text.splitlines()) if line.strip()), "no message"
    )


def reason(text: str) -> str:
    """Return why a driver failed: the last line that names an error, else the last line."""
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if line.lower().startswith("error:") or "Error: " in line[:60]]
    return errors[-1] if errors else last_line(text)


def calibrate(job: str, scale: str) -> list[Setting]:
    """Time one local step with one thread and all, with and without oneDNN."""
    command = [sys.executable, str(HERE / "torch_model.py"), job, "--scale", scale]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise JobError(f"job {job}: a local step cannot be timed: {last_line(done.stderr)}")
    settings: list[Setting] = json.loads(done.stdout)
    return settings


def fastest(settings: Sequence[Setting], system: str, onednn: str) -> Setting:
    """Return the setting with a system's fastest local step; oneDNN may be given.

    Several threads must be a tenth faster than one, because they wait for each other whenever
    another process runs.
    """
    fits = [s for s in settings if system in SERIAL or s["threads"] == 1]
    fits = [s for s in fits if onednn == "fastest" or s["onednn"] == (onednn == "on")]
    return min(fits, key=lambda s: s["milliseconds"] * (1.1 if s["threads"] > 1 else 1.0))


def beside_gpu(system: str) -> Setting:
    """Return PyTorch's settings on the CPU if a GPU does the training."""
    return {"threads": cores() if system in AVERAGE_ON_CPU else 1, "onednn": True}


def launch(
    system: str,
    job: str,
    rounds: int,
    device: str,
    setting: Setting,
    scale: str,
    gpu_share: float,
    limit: float,
) -> Run:
    """Run a driver in its own process; return its result and the wall time, or why it failed."""
    run: Run = {"system": system, "job": job}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        log = Path(folder, "log")
        onednn = "on" if setting["onednn"] else "off"
        command = [str(interpreter(system)), str(HERE / f"drive_{system}.py"), job]
        command += ["--rounds", str(rounds), "--scale", scale, "--device", device]
        command += ["--data", str(data_file(job, scale)), "--out", str(out)]
        command += ["--threads", str(setting["threads"]), "--onednn", onednn]
        command += ["--gpu-share", str(gpu_share)]
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
                return run | {"failed": f"not finished after {limit:g} s"}
            except KeyboardInterrupt:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        wall = time.perf_counter() - began
        if process.returncode or not out.exists():
            return run | {"failed": reason(log.read_text(encoding="utf-8", errors="replace"))}
        result: Run = json.loads(out.read_text(encoding="utf-8"))
        return result | {"wall": wall, "setting": setting}


def machine() -> dict[str, Any]:
    """Return the platform, the number of cores and the load of this machine."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": cores(),
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
    check_share(arguments.gpu_share)
    if arguments.wheels is not None and not arguments.wheels.is_dir():
        raise JobError(f"--wheels {arguments.wheels}: no such folder")
    found = {name: find_job(name, arguments.scale) for name in jobs}
    devices = {name: str(arguments.device or found[name].device) for name in jobs}
    for job in jobs:
        for system in systems:
            check_system(system, found[job], devices[job])
    if arguments.wheels is not None:
        for system in systems:
            if system in CPU_ONLY:
                raise JobError(f"--wheels: there is no list of wheels for {system}")
    before = machine()
    broken = {}
    gpus = {name: {"gpu": gpu()} if device == "cuda" else {} for name, device in devices.items()}
    for system in systems:
        problem = set_up(system, arguments.wheels, console)
        if problem:
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
                setting = fastest(timed, system, arguments.onednn) if timed else beside_gpu(system)
                run = launch(
                    system,
                    job,
                    rounds,
                    devices[job],
                    setting,
                    arguments.scale,
                    arguments.gpu_share,
                    arguments.timeout,
                )
                runs.append(run | {"repeat": repeat})
                text = run.get("failed")
                if text is None:
                    seconds = median(run["seconds"][1:])
                    text = f"{seconds:.3f} s per round, {run['wall']:.1f} s in total"
                line = f"repeat {repeat + 1}, job {job}, {system}: {text}"
                console.print(line, highlight=False, markup=False)
    command = shlex.join(["python", "benchmarks/peers/run.py", *sys.argv[1:]])
    about = {
        job: {"command": command, "machine": before | gpus[job], "local_step": settings[job]}
        for job in jobs
    }
    return {"measured": about, **compare(runs), "runs": runs}


def together(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a new result together with an older one's other jobs."""
    kept = [run for run in old["runs"] if run["job"] not in new["measured"]]
    runs = [*kept, *new["runs"]]
    return {"measured": {**old["measured"], **new["measured"]}, **compare(runs), "runs": runs}


def main() -> None:
    """Measure, write the result and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    anywhere = ",".join(name for name, job in JOBS.items() if job.device == "cpu")
    parser.add_argument(
        "--jobs",
        default=anywhere,
        help="jobs, separated by commas; default: all that run on a CPU",
    )
    parser.add_argument(
        "--peers", default=",".join(SYSTEMS[1:]), help="other systems, separated by commas"
    )
    parser.add_argument("--rounds", type=int, help="rounds of every run; default: each job's own")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--timeout", type=float, default=3600, help="seconds after which a run is stopped"
    )
    parser.add_argument(
        "--onednn",
        choices=("fastest", "on", "off"),
        default="fastest",
        help="whether PyTorch peers use oneDNN",
    )
    parser.add_argument(
        "--device", choices=DEVICES, help="device to train on; default: each job's own"
    )
    parser.add_argument(
        "--scale", choices=SCALES, default="full", help="tiny: only to test that everything works"
    )
    parser.add_argument(
        "--gpu-share",
        type=float,
        default=GPU_SHARE,
        help="part of the GPU per client, in systems that train several clients at once (Flower)",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        help="folder with a folder of wheels per peer; they are installed beside the packages of "
        "this environment, without a network",
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--add", action="store_true", help="keep the result file's other jobs")
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
