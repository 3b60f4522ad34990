"""What it ran on."""

import os
import platform
import subprocess


def describe():
    model = memory = None
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(file.readline().split()[1]) * 1024
    return {"cpu": model, "cores": os.cpu_count(), "memoryBytes": memory,
            "kernel": platform.release(), "system": _pretty()}


def _pretty():
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        return platform.system()


def output(*command, cwd=None):
    """What a command prints, or nothing if it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, check=True, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return done.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
