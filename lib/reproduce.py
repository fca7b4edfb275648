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
import torch

from lib import claims, drift, figures, files, notebooks, paths, readme, runs, studies, texts


def run(profile: str, study: str | None = None) -> None:
    """Build a whole profile, or train, measure and draw one study; what is finished is used again.

    Raises ValueError for an unknown profile or study, and when another build of the profile is
    under way.
    """
    place = paths.results(profile)
    if profile not in (*paths.PROFILES, paths.GPU):
        raise ValueError("The reference is what `make accept` promotes: choose another profile.")
    if study is not None:
        _check_study(study, profile)
    if profile == paths.GPU and not torch.cuda.is_available():
        raise ValueError("The profile gpu needs an NVIDIA GPU that torch can use: there is none.")
    began = time.monotonic()
    with _alone(place):
        if study is not None:
            run_study(study, profile)
            draw_study(study, profile)
            return
        for name in studies.of(profile):
            run_study(name, profile)
        draw(profile)
        if profile in paths.PROFILES:
            files.write_csv(claims.decide(profile), place / "claims.csv")
            files.enlist(place / "claims.csv")
            notebooks.execute(profile)
    print(f"{profile}: done in {(time.monotonic() - began) / 60:.1f} min; see {_relative(place)}/")
    if profile == "default":
        print("\n".join(compare()))


def _check_study(name: str, profile: str) -> None:
    known = studies.of(profile)
    if name not in known:
        raise ValueError(
            f"The profile {profile} has no study {name!r}; choose one of: {', '.join(known)}."
        )


def run_study(name: str, profile: str) -> None:
    """Train and measure one study; write its results, its timings and where they came from."""
    study = studies.study(name)
    outcomes = runs.run(study.jobs(profile), name, alone=studies.alone(name))
    seconds = write(name, profile, outcomes, paths.results(profile))
    print(f"{name}: {len(outcomes)} runs, {seconds:.0f} core-seconds of {study.COST[profile]}")


def write(name: str, profile: str, outcomes: list[runs.Outcome], place) -> float:
    """Write what a study has measured into a folder; the core-seconds that it took come back."""
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
        data_hash=_data_hash({t.text for t in trained}),
        seconds=seconds,
    )
    results, timings, origin = (
        place / f"{name}{end}" for end in (".csv", "_timings.csv", "_provenance.json")
    )
    files.write_csv(studies.study(name).collect(outcomes), results)
    files.write_csv(runs.timings(outcomes), timings)
    files.write_json(source, origin)
    files.enlist(results, timings, origin)
    return seconds


def _data_hash(names: set[str]) -> str:
    """The hash of the text that was learned from, or of the hashes of several."""
    hashes = [texts.load(name).hash for name in sorted(names or {texts.MESSAGES})]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


def _trainings(profile: str, before: str):
    """The trainings of the studies before one: it uses their models and does not pay for them."""
    names = studies.of(profile)
    for name in names[: names.index(before)]:
        yield from (job.training for job in studies.study(name).jobs(profile) if job.training)


def redraw(profile: str) -> None:
    """`draw`, while no build of the profile is under way (ValueError)."""
    with _alone(paths.results(profile)):
        draw(profile)


def draw(profile: str) -> None:
    """Draw every figure and write every table from the results of a profile.

    Raises ValueError when the profile has not been run, or its results are damaged.
    """
    for name in studies.of(profile):
        draw_study(name, profile)


def draw_study(name: str, profile: str) -> None:
    """Draw the figures and write the tables of one study from the results of a profile."""
    study, results, place = studies.study(name), studies.read(name, profile), paths.results(profile)
    source = studies.provenance(name, profile)
    for table, make in study.TABLES.items():
        files.write_csv(make(results), place / f"{table}.csv")
        files.enlist(place / f"{table}.csv")
    for figure, (frame, picture) in study.FIGURES.items():
        numbers = frame(results)
        drawn = picture(numbers)
        figures.publish(drawn, figure, numbers, source, profile)
        plt.close(drawn)


def compare() -> list[str]:
    """The lines that say how far build/default lies from the reference."""
    if not (paths.REFERENCE / "claims.csv").exists():
        return ["There is no reference yet: `make accept` makes this build the reference."]
    verdicts = [
        studies.read("claims", profile).set_index("id")["verdict"].to_dict()
        for profile in ("default", "reference")
    ]
    timings = [
        f for n in studies.of("default") if studies.alone(n) for f in studies.study(n).FIGURES
    ]
    frames = (studies.frames(profile) for profile in ("default", "reference"))
    return drift.report(*frames, *verdicts, timings)


def accept() -> None:
    """Promote build/default: its results become the reference, and the notebooks show them.

    Raises ValueError when there is no finished build, or one is under way, or a result is damaged.
    """
    built = paths.results("default")
    if not (built / "claims.csv").exists():
        raise ValueError("There is no finished build to accept: run `make reproduce` first.")
    with _alone(built), _kept_on_failure(paths.REFERENCE):
        for name in files.listed(built):  # not what an older version may have left there
            with files.atomic(paths.REFERENCE / name) as temporary:
                shutil.copyfile(files.verified(built / name), temporary)
            files.enlist(paths.REFERENCE / name)
        notebooks.refresh()
    readme.write()
    print(f"{_relative(built)} is the reference now; `git diff --stat` shows what changed.")


def accept_full(study: str | None = None) -> None:
    """Commit what `make full` has finished of one study, or of all, into data/reference/full.

    Figures of studies that the default profile leaves out are drawn into figures/. Raises
    ValueError for an unknown study, and when nothing is finished, or less than what is committed.
    """
    if study is not None:
        _check_study(study, "full")
    place, taken = paths.results("reference of full"), []
    for name in [study] if study else studies.of("full"):
        jobs = studies.study(name).jobs("full")
        outcomes = runs.finished(jobs)
        committed = place / f"{name}_timings.csv"
        before = len(pd.read_csv(committed)) if committed.exists() else 0
        if len(outcomes) < before:
            raise ValueError(
                f"{before} runs of {name} are committed and {len(outcomes)} are finished here: go "
                "on with `make full` first."
            )
        if outcomes:
            write(name, "full", outcomes, place)
            taken.append(f"{name} {len(outcomes)} of {len(jobs)}")
            if name not in studies.of("default"):
                draw_study(name, "reference of full")
    if not taken:
        raise ValueError("No run of the full profile is finished here: run `make full` first.")
    print(f"{_relative(place)} holds the runs of {', '.join(taken)}.")


@contextlib.contextmanager
def _alone(place):
    """One build of a profile at a time: the lock goes with the process, however it ends."""
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "w", encoding="utf-8") as lock:
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
