#!/usr/bin/env -S python3 -IS
"""A Slurm of five commands over a folder of JSON files, for error paths that a real one does not show on demand.

Put `tests/fakes/bin` first on PATH and set:

  FAKE_SLURM_STATE     the folder
  FAKE_SLURM_MODE      what goes wrong; words joined by commas:
    hang                 sbatch never answers, and accepts nothing
    accept-then-hang     sbatch accepts the job and never answers
    accept-then-die      sbatch accepts the job and is killed before it says so
    print-then-die       sbatch accepts the job, prints its id and is killed
    accept-then-time-out sbatch accepts, but hears nothing from the controller and says so
    refuse, refuse-option  sbatch says no: by the controller's words, or its own
    unreachable          no command finds the controller
    slow                 squeue and sacct never answer
    slow-release         scontrol never comes to releasing a job
    old                  squeue knows of widths, and of nothing to put between fields
    banner               sbatch prints a site's banner first
    no-accounts          sacct says that accounting is disabled
    accounts-down        sacct cannot reach its database
  FAKE_SLURM_MINUTE    how many seconds a minute of a time limit has; 60
  FAKE_SLURM_KILL_WAIT how many seconds a job has between TERM and KILL; 30
  FAKE_SLURM_FROM      from which sbatch on FAKE_SLURM_MODE counts; 1
  FAKE_SLURM_ARRAY     MaxArraySize; 1001
  FAKE_SLURM_KEEP      how many seconds squeue remembers an ended job; 300

Each call is noted in FAKE_SLURM_STATE/calls, a line of JSON each. The contract suite keeps it honest.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE = Path(os.environ["FAKE_SLURM_STATE"])
MODE = set(os.environ.get("FAKE_SLURM_MODE", "").split(","))
MINUTE = float(os.environ.get("FAKE_SLURM_MINUTE", "60"))
KEEP = float(os.environ.get("FAKE_SLURM_KEEP", "300"))
KILL_WAIT = float(os.environ.get("FAKE_SLURM_KILL_WAIT", "30"))
RUNNER = "FAKE_SLURM_RUNNER"
LIVE = {"PENDING", "RUNNING", "COMPLETING"}


def main():
    STATE.mkdir(exist_ok=True)
    command = Path(sys.argv[0]).name
    note = json.dumps({"command": command, "argv": sys.argv[1:], "pid": os.getpid()}) + "\n"
    with (STATE / "calls").open("a") as calls:
        calls.write(note)
    if "unreachable" in MODE and command != "sacct":
        failed = "Batch job submission failed: " if command == "sbatch" else "slurm_load_jobs error: "
        fail(f"{command}: error: {failed}Unable to contact slurm controller (connect failure)")
    {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel, "scontrol": scontrol}[command](
        sys.argv[1:]
    )


def fail(message, status=1):
    print(message, file=sys.stderr)
    sys.exit(status)


def never_answer():
    """Ends when the caller has ended. The alarm is for a caller that ended before this one asked who it is."""
    caller = os.getppid()
    signal.alarm(600)
    while os.getppid() == caller:
        time.sleep(0.05)
    sys.exit(1)


def options_of(argv):
    """Options as a dict, and the rest from the first word that is none."""
    count = next((place for place, word in enumerate(argv) if not word.startswith("-")), len(argv))
    pairs = (word.lstrip("-").partition("=") for word in argv[:count])
    return {name: value for name, _, value in pairs}, argv[count:]


def sbatch(argv):
    with (STATE / "calls").open() as calls:
        if sum('"command": "sbatch"' in line for line in calls) < int(os.environ.get("FAKE_SLURM_FROM", "1")):
            MODE.clear()
    if "hang" in MODE:
        never_answer()
    if "refuse" in MODE:
        fail("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified")
    if "refuse-option" in MODE:
        fail("sbatch: unrecognized option '--frobnicate'\nTry \"sbatch --help\" for more information")
    options, command = options_of(argv)
    job = new_job(options, command)
    start_runner(job)
    write(job)
    if "accept-then-hang" in MODE:
        never_answer()
    if "accept-then-die" in MODE:
        os.kill(os.getpid(), signal.SIGKILL)
    if "accept-then-time-out" in MODE:
        fail("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    if "banner" in MODE:
        print("*** Scratch is purged on Monday the 2026\n12 users are logged in\n")
    print(job["id"], flush=True)
    if "print-then-die" in MODE:
        os.kill(os.getpid(), signal.SIGKILL)


def new_job(options, command):
    number = 1
    while True:
        with contextlib.suppress(FileExistsError):
            (STATE / f"{number}.cancel").mkdir()
            break
        number += 1
    listed, _, throttle = options.get("array", "").partition("%")
    return {
        "id": number,
        "name": options["job-name"],
        "command": command,
        "directory": options["chdir"],
        "output": options["output"],
        "limit": seconds_of(options["time"]) if "time" in options else None,
        "lead": int(options.get("signal", "@0").rpartition("@")[2]) * MINUTE / 60,
        "held": "begin" in options,
        "on_hold": "hold" in options,
        "after": options.get("dependency", "").removeprefix("afterany:"),
        "throttle": int(throttle or 0),
        "tasks": {str(index): new_task(number, index) for index in indices_of(listed)},
    }


def new_task(number, index):
    return {
        "index": index,
        "number": number + (index or 0),
        "state": "PENDING",
        "wait": 0,
        "start": 0,
        "end": 0,
        "warned": False,
    }


def indices_of(listed):
    if not listed:
        return [None]
    found = []
    for item in listed.split(","):
        span, _, step = item.partition(":")
        first, dash, last = span.partition("-")
        found += range(int(first), int(last if dash else first) + 1, int(step or 1))
    return found


def seconds_of(limit):
    days, _, clock = limit.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes + seconds / 60) * MINUTE


def write(job):
    aside = STATE / f".{job['id']}.{os.getpid()}"
    aside.write_text(json.dumps(job))
    aside.rename(STATE / f"{job['id']}.json")


def jobs():
    return [json.loads(path.read_text()) for path in sorted(STATE.glob("*.json"), key=lambda path: int(path.stem))]


def start_runner(job):
    """The part of slurmd: a process of its own that runs the job's tasks, and is there before the job is."""
    environment = {**os.environ, RUNNER: f"{job['id']} {os.getpid()}", "FAKE_SLURM_MODE": ""}
    subprocess.Popen(
        [sys.executable, __file__],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def run(number, sbatch):
    file = STATE / f"{number}.json"
    while not file.exists():
        if os.getppid() != int(sbatch) and not file.exists():
            return  # killed before it had accepted the job
        time.sleep(0.005)
    job = json.loads(file.read_text())
    children = {}
    while any(task["state"] in LIVE for task in job["tasks"].values()):
        before = json.dumps(job)
        for key, task in job["tasks"].items():
            step(job, key, task, children)
        if json.dumps(job) != before:
            write(job)
        time.sleep(0.02)


def step(job, key, task, children):
    if task["state"] == "PENDING":
        if is_cancelled(job, key):
            task.update(state="CANCELLED", end=time.time())
        elif not is_before_its_turn(job) and (not job["throttle"] or len(children) < job["throttle"]):
            children[key] = launch(job, key, task)
            task.update(state="RUNNING", start=time.time())
    elif task["state"] in LIVE:
        child = children[key]
        if child.poll() is None:
            end_if_due(job, key, task, child)
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        del children[key]
        status = child.returncode
        verdict = task.get("ending") or ("FAILED" if status else "COMPLETED")
        task.update(state=verdict, end=time.time(), wait=-status if status < 0 else status << 8)


def is_before_its_turn(job):
    """Whether it is held, or the job or task that it depends on has not ended."""
    if job["held"] or (job["on_hold"] and not (STATE / f"{job['id']}.cancel" / "released").exists()):
        return True
    number, _, key = job["after"].partition("_")
    if not number or not (STATE / f"{number}.json").exists():
        return False
    tasks = json.loads((STATE / f"{number}.json").read_text())["tasks"]
    return any(task["state"] in LIVE for name, task in tasks.items() if key in ("", name))


def end_if_due(job, key, task, child):
    now = time.time()
    if "ending" in task:
        if now > task["told"] + KILL_WAIT:
            os.killpg(child.pid, signal.SIGKILL)
        return
    left = float("inf") if job["limit"] is None else task["start"] + job["limit"] - now
    if job["lead"] and left < job["lead"] and not task["warned"]:
        task["warned"] = True
        child.send_signal(signal.SIGUSR1)
    over = left < 0
    if over or is_cancelled(job, key):
        task.update(ending="TIMEOUT" if over else "CANCELLED", told=now, state="COMPLETING")
        os.killpg(child.pid, signal.SIGTERM)


def is_cancelled(job, key):
    folder = STATE / f"{job['id']}.cancel"
    return (folder / "all").exists() or (folder / key).exists()


def launch(job, key, task):
    log = log_of(job["output"], key)
    variables = {"SLURM_JOB_ID": str(task["number"]), "SLURM_JOB_NODELIST": "n1"}
    if task["index"] is not None:
        variables |= {"SLURM_ARRAY_JOB_ID": str(job["id"]), "SLURM_ARRAY_TASK_ID": key}
    environment = {name: value for name, value in os.environ.items() if name != RUNNER} | variables
    with Path(log).open("a") as output:
        return subprocess.Popen(
            ["bash", *job["command"]],
            cwd=job["directory"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def log_of(pattern, key):
    """A backslash anywhere switches `%` off, as in Slurm."""
    if "\\" in pattern:
        return re.sub(r"\\(.)", r"\1", pattern)
    return re.sub("%(.)", lambda match: key if match[1] == "a" else match[1], pattern)


def squeue(argv):
    if "slow" in MODE:
        never_answer()
    options, _ = options_of(argv)
    fields = [field.partition(":") for field in options["Format"].split(",")]
    rows = [row for job in jobs() for row in queue_rows(job) if is_wanted(row, options.get("jobs"))]
    if "jobs" in options and not rows:
        fail("slurm_load_jobs error: Invalid job id specified")
    for row in rows:
        print("".join(cell(row[name], after) for name, _, after in fields))


def is_wanted(row, job):
    spelled = row["ArrayJobID"] if row["ArrayTaskID"] == "N/A" else f"{row['ArrayJobID']}_{row['ArrayTaskID']}"
    return job is None or job == spelled


def cell(value, after):
    """A field and what follows it: a width, or a suffix, of which old ones know nothing."""
    if after.isdecimal():
        return value.ljust(int(after))
    return value + ("" if "old" in MODE else after)


def queue_rows(job):
    """An array's pending tasks share a row, as squeue has it."""
    known = [e for e in job["tasks"].values() if e["state"] in LIVE or time.time() - e["end"] < KEEP]
    pending = [task for task in known if task["state"] == "PENDING" and task["index"] is not None]
    for task in known:
        if task not in pending:
            yield queue_row(job, task, "N/A" if task["index"] is None else str(task["index"]))
    if pending:
        throttle = f"%{job['throttle']}" if job["throttle"] else ""
        yield queue_row(job, pending[0], ",".join(str(task["index"]) for task in pending) + throttle)


def queue_row(job, task, indices):
    is_pending = task["state"] == "PENDING"
    return {
        "ArrayJobID": str(job["id"]),
        "ArrayTaskID": indices,
        "State": task["state"],
        "Reason": ("BeginTime" if job["held"] else "JobArrayTaskLimit") if is_pending else "None",
        "exit_code": str(task["wait"]),
        "StartTime": str(int(task["start"])) if task["start"] else "N/A",
        "EndTime": str(int(task["end"])) if task["end"] else "N/A",
        "RestartCnt": "0",
        "PreemptTime": "N/A",
        "NodeList": "" if is_pending else "n1",
        "Name": job["name"],
        "Comment": "(null)",
    }


def sacct(argv):
    if "slow" in MODE:
        never_answer()
    if "no-accounts" in MODE:
        fail("Slurm accounting storage is disabled")
    if "accounts-down" in MODE or "unreachable" in MODE:
        fail("sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection")
    options, _ = options_of(argv)
    wanted = options.get("jobs", "").split(",")
    for job in jobs():
        for key, task in job["tasks"].items():
            spelled = str(job["id"]) if task["index"] is None else f"{job['id']}_{key}"
            if wanted == [""] or {str(job["id"]), spelled} & set(wanted):
                row = account_row(job, task, spelled)
                print(options["delimiter"].join(row.get(name, "") for name in options["format"].split(",")))


def account_row(job, task, spelled):
    state = task["state"].replace("COMPLETING", "RUNNING")
    return {
        "JobID": spelled,
        "JobName": job["name"],
        "State": f"CANCELLED by {os.getuid()}" if state == "CANCELLED" else state,
        "ExitCode": f"{task['wait'] >> 8}:{task['wait'] & 127}",
        "End": str(int(task["end"])) if task["end"] else "Unknown",
        "NodeList": "n1" if task["start"] else "None assigned",
    }


def scancel(argv):
    status = 0
    for word in argv:
        number, _, key = word.partition("_")
        if not (STATE / f"{number}.json").exists():
            print(f"scancel: error: Kill job error on job id {word}: Invalid job id specified", file=sys.stderr)
            status = 1
            continue
        (STATE / f"{number}.cancel" / (key or "all")).touch()
    sys.exit(status)


def scontrol(argv):
    if argv == ["show", "config"]:
        print(f"MaxArraySize            = {os.environ.get('FAKE_SLURM_ARRAY', '1001')}")
    elif argv[0] == "release":
        if "slow-release" in MODE:
            time.sleep(600)
        for number in argv[1].split(","):
            if not (STATE / f"{number}.json").exists():
                fail(f"Invalid job id specified for job {number}\nslurm_suspend error: Invalid job id specified")
            (STATE / f"{number}.cancel" / "released").touch()
    else:
        fail(f"this scontrol has no {argv[0]}")


if __name__ == "__main__":
    run(*os.environ[RUNNER].split()) if RUNNER in os.environ else main()
