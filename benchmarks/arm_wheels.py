"""Whether pip finds a wheel for 64-bit ARM (aarch64) of every exact version of constraints.txt.

pip resolves each version for that platform by its own settings, and installs nothing. It reads the wheels' metadata
alone where the index allows it. What has no wheel is named: pip would build it from source on such a machine.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
_OLDEST, _NEWEST = 17, 36
"""glibc 2.x of the oldest system that wheels are for, and of a system of today (Debian 12)."""
_AT_ONCE = 10
"""Versions that pip is asked for together: those beside one that has no wheel are asked for again."""
_LACKING = re.compile(r"No matching distribution found for (\S+?)==")


def versions(path: Path) -> list[str]:
    """Return the lines of a file of constraints."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def name_of(requirement: str) -> str:
    """Return a package's name in its normal form.

    >>> name_of("rouge_score==0.1.2")
    'rouge-score'
    """
    return re.sub(r"[-_.]+", "-", requirement.partition("==")[0]).lower()


def resolved(requirements: list[str], python: str) -> tuple[list[str], list[str]]:
    """Return the file names of the wheels, and the requirements that have none.

    Args:
        requirements: Such as ``"numpy==2.3.0"``.
        python: Version of Python, such as ``"3.11"``.
    """
    wheels, lacking = list[str](), list[str]()
    waiting = [requirements[start : start + _AT_ONCE] for start in range(0, len(requirements), _AT_ONCE)]
    while waiting:
        wanted = waiting.pop(0)
        report, said = _dry_run(wanted, python)
        if report is not None:
            wheels += [_file_name(one) for one in report["install"]]
            continue
        found = _LACKING.search(said)
        without = [one for one in wanted if found and name_of(one) == name_of(found[1])]
        if not without:
            raise SystemExit(
                f"pip failed: {said.strip().splitlines()[-1] if said.strip() else 'it said nothing'}"
            )
        lacking += without
        if rest := [one for one in wanted if one not in without]:
            waiting.insert(0, rest)
    return wheels, lacking


def _dry_run(requirements: list[str], python: str) -> tuple[dict[str, Any] | None, str]:
    """Return pip's report, or None, and what pip said."""
    glibcs = [f"manylinux_2_{minor}_aarch64" for minor in range(_OLDEST, _NEWEST + 1)]
    platforms = [word for one in ("manylinux2014_aarch64", *glibcs) for word in ("--platform", one)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed"]
        command += ["--only-binary", ":all:", "--use-feature", "fast-deps", "--target", folder, *platforms]
        command += ["--python-version", python, "--implementation", "cp", "--report", str(path), "--quiet"]
        done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
        return json.loads(path.read_bytes()) if done.returncode == 0 else None, done.stderr


def _file_name(installed: dict[str, Any]) -> str:
    name: str = installed["download_info"]["url"].rpartition("/")[2]
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--constraints", type=Path, default=CONSTRAINTS)
    parser.add_argument("--python", default="3.11", help="version of Python")
    options = parser.parse_args()
    requirements = versions(options.constraints)
    wheels, lacking = resolved(requirements, options.python)
    figures = {
        "python": options.python,
        "versions": len(requirements),
        "wheels for any machine": sum(name.endswith("-any.whl") for name in wheels),
        "wheels for aarch64": sum(not name.endswith("-any.whl") for name in wheels),
        "without a wheel": lacking,
    }
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
