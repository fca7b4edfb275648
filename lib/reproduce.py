"""From nothing to every figure: run the studies, draw, decide the claims, execute the notebooks,
and compare with the reference.

What a profile makes lies under build/<profile>/; the default profile also draws figures/ anew. The
committed results and notebooks change only by `accept`.
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
import time

import matplotlib.pyplot as plt
import pandas as pd

from lib import claims, corpus, drift, figures, files, notebooks, paths, readme, runs, studies


def run(profile: str) -> None:
    """Build a whole profile; what is finished already is used again.

    Raises ValueError for an unknown profile, and when another build of it is under way.
    """
    place = paths.results(profile)
    if profile == "reference":
        raise ValueError("The reference is what `make accept` promotes: choose another profile.")
    began = time.monotonic()
    with _alone(place):
        for name in studies.STUDIES:
            run_study(name, profile)
        draw(profile)
        files.write_csv(claims.decide(profile), place / "claims.csv")
        notebooks.execute(profile)
    print(f"{profile}: done in {(time.monotonic() - began) / 60:.1f} min; see {_relative(place)}/")
    if profile == "default":
        print("\n".join(compare()))


def run_study(name: str, profile: str) -> None:
    """Train and measure one study; write its results, its timings and where they came from."""
    study, place = studies.study(name), paths.results(profile)
    outcomes = runs.run(study.jobs(profile), name, alone=studies.alone(name))
    trained = [o.job.training for o in outcomes if o.job.training]
    earlier = {t.key for t in _trainings(profile, before=name)}
    seconds = sum(
        o.measuring_seconds
        + (o.training_seconds if o.job.training and o.job.training.key not in earlier else 0)
        for o in outcomes
    )
    settings = [o.job.settings for o in outcomes]
    asked = json.dumps([[t.key for t in trained], settings])
    source = figures.provenance(
        study=name,
        config_hash=hashlib.sha256(asked.encode()).hexdigest(),
        seeds={t.seed for t in trained} | {s["seed"] for s in settings if "seed" in s},
        data_hash=corpus.load().hash,
        seconds=seconds,
    )
    files.write_csv(study.collect(outcomes), place / f"{name}.csv")
    files.write_csv(runs.timings(outcomes), place / f"{name}_timings.csv")
    files.write_json(source, place / f"{name}_provenance.json")
    print(f"{name}: {len(outcomes)} runs, {seconds:.0f} core-seconds of {study.COST[profile]}")


def _trainings(profile: str, before: str):
    """The trainings of the studies before one: it uses their models and does not pay for them."""
    for name in studies.STUDIES[: studies.STUDIES.index(before)]:
        yield from (job.training for job in studies.study(name).jobs(profile) if job.training)


def draw(profile: str) -> None:
    """Draw every figure and write every table from the results of a profile.

    Raises ValueError when the profile has not been run.
    """
    place = paths.results(profile)
    for name in studies.STUDIES:
        study, results = studies.study(name), studies.read(name, profile)
        source = json.loads((place / f"{name}_provenance.json").read_text(encoding="utf-8"))
        for table, make in study.TABLES.items():
            files.write_csv(make(results), place / f"{table}.csv")
        for figure, (frame, picture) in study.FIGURES.items():
            numbers = frame(results)
            if numbers.empty:  # of what this profile leaves out
                continue
            drawn = picture(numbers)
            figures.publish(drawn, figure, numbers, source, profile)
            plt.close(drawn)


def compare() -> list[str]:
    """The lines that say how far build/default lies from the reference."""
    if not (paths.REFERENCE / "claims.csv").exists():
        return ["There is no reference yet: `make accept` makes this build the reference."]
    verdicts = [
        pd.read_csv(paths.results(profile) / "claims.csv").set_index("id")["verdict"].to_dict()
        for profile in ("default", "reference")
    ]
    return drift.report(studies.frames("default"), studies.frames("reference"), *verdicts)


def accept() -> None:
    """Promote build/default: its results become the reference, and the notebooks show them.

    Raises ValueError when there is no finished build.
    """
    built = paths.results("default")
    if not (built / "claims.csv").exists():
        raise ValueError("There is no finished build to accept: run `make reproduce` first.")
    with _kept_on_failure(paths.REFERENCE):
        for path in sorted([*built.glob("*.csv"), *built.glob("*.json")]):
            with files.atomic(paths.REFERENCE / path.name) as temporary:
                shutil.copyfile(path, temporary)
        notebooks.refresh()
    readme.write()
    print(f"{_relative(built)} is the reference now; `git diff --stat` shows what changed.")


@contextlib.contextmanager
def _alone(place):
    """One build of a profile at a time: the lock goes with the process, however it ends."""
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another build of {_relative(place)} is under way: wait for it, or stop it."
            ) from None
        yield


@contextlib.contextmanager
def _kept_on_failure(folder):
    """Put the folder back as it was when what follows fails: results and notebooks go together."""
    before = paths.BUILD / f"{folder.name}-before"
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        shutil.copytree(folder, before)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, folder)
        raise
    finally:
        shutil.rmtree(before, ignore_errors=True)


def _relative(path):
    return path.relative_to(paths.ROOT)
