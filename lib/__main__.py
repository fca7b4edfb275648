"""The command line behind the Makefile: every failure is one sentence, never a traceback.

    python -m lib run --profile quick | default | full | gpu
    python -m lib draw --profile quick | default | full     draw its figures anew
    python -m lib accept        promote build/default to the committed reference
                                (--profile full: what `make full` has finished so far)
    python -m lib sweep         choose the learning rates anew (data/*learning_rates.csv)
    python -m lib bench         measure costs on this machine, into build/bench/
    python -m lib gpu-check     what a GPU makes of the encodings, into data/reference/gpu/
    python -m lib compare FILE  an encoding of your own beside the survey's, into build/compare/
    python -m lib context FILE --to N   how a model of this config.json reads N tokens
    python -m lib train FILE    train one model, alone or under torchrun, into build/train/
    python -m lib readme        write the numbers in README.md anew from the reference
    python -m lib book          the notebooks as static pages, into build/book/
    python -m lib notebooks     execute the committed notebooks in place, on the reference
"""

import argparse
import logging
import sys

INTERRUPTED, BAD = 130, 2


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status is 0, 2 for an error, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # in an ASCII locale, an arrow is written as \u2192
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except KeyboardInterrupt:
        print("Interrupted: the same command goes on from here.", file=sys.stderr)
        return INTERRUPTED
    except UnicodeEncodeError as error:
        what = f"a name or a text cannot be written here ({error})"
        print(f"Error: {what}. Set PYTHONUTF8=1 and run again.", file=sys.stderr)
        return BAD
    except (ValueError, RuntimeError, ArithmeticError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return BAD
    except MemoryError:
        print("Error: out of memory. Run it again with WORKERS=1, or elsewhere.", file=sys.stderr)
        return BAD
    except ModuleNotFoundError as error:
        print(f"Error: the package {error.name} is missing: run `make setup`.", file=sys.stderr)
        return BAD
    except OSError as error:
        what = f"{error.strerror or error}: {error.filename or 'a file'}"
        no_file = isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
        advice = "Check the path" if no_file else "Nothing is half-written; mend it and run again"
        print(f"Error: {what}. {advice}.", file=sys.stderr)
        return BAD
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lib", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name, command, help):
        sub = commands.add_parser(name, help=help)
        sub.set_defaults(command=command)
        return sub

    run = add("run", _run, "build a profile: train, measure, draw, execute the notebooks")
    run.add_argument("--study", help="one study alone: train, measure and draw it")
    draw = add("draw", _draw, "draw a profile's figures anew from its results")
    for sub in (run, draw):
        sub.add_argument("--profile", default="default", help="quick, default or full")
    accept = add("accept", _accept, "promote what was built to the committed reference")
    accept.add_argument("--profile", default="default", help="default or full")
    accept.add_argument("--study", help="of full, one study alone")
    add("sweep", _sweep, "choose the learning rates anew")
    bench = add("bench", _bench, "measure what things cost on this machine")
    bench.add_argument("parts", nargs="*", help="which, such as rotation; none means all")
    check = add("gpu-check", _gpu_check, "what a GPU makes of the encodings, in five minutes")
    check.add_argument("--device", help="cpu: a dry run with small sizes")
    compare = add("compare", _compare, "try an encoding of your own beside the survey's")
    compare.add_argument("file", help="a Python file that registers one encoding")
    compare.add_argument("--out", help="the report's folder; build/compare/<name> by default")
    context = add("context", _context, "how the model of a config.json reads a longer text")
    context.add_argument("file", help="a model's config.json, as Hugging Face writes it")
    context.add_argument("--to", type=int, required=True, help="tokens that it is to read")
    context.add_argument(
        "--from", type=int, dest="trained", metavar="TRAINED",
        help="the trained length, where the file's max_position_embeddings is another",
    )  # fmt: skip
    context.add_argument("--picture", metavar="PNG", help="where to draw its pairs")
    add("book", _book, "make pages of the notebooks, into build/book/")
    train = add("train", _train, "train one model, alone or as a process of torchrun")
    train.add_argument("file", help="a TOML file that says what to train; see data/large/")
    add("readme", _readme, "write the numbers in README.md anew")
    refresh = add("notebooks", _notebooks, "execute the committed notebooks in place")
    refresh.add_argument("names", nargs="*", help="which, such as 02_sinusoidal; none means all")
    return parser


# The imports wait, so that `--help` and a mistyped profile answer at once.
def _run(options):
    from lib import reproduce

    reproduce.run(options.profile, options.study or None)


def _draw(options):
    from lib import reproduce

    reproduce.redraw(options.profile)


def _accept(options):
    from lib import reproduce

    if options.profile not in ("default", "full"):
        raise ValueError(f"Only default and full are committed, not {options.profile!r}.")
    if options.profile == "full":
        reproduce.accept_full(options.study or None)
    else:
        reproduce.accept()


def _sweep(options):
    from lib.studies import learning_rates, vision

    learning_rates.sweep()
    vision.sweep()


def _bench(options):
    from lib import bench

    bench.run(options.parts or None)


def _gpu_check(options):
    from lib import gpu_check

    gpu_check.run(options.device)


def _compare(options):
    from lib import compare

    compare.run(options.file, options.out)


def _context(options):
    from lib import context

    advice = context.run(options.file, options.to, options.trained)
    if options.picture:
        from lib import pictures_config

        pictures_config.save(advice, options.picture)
def _book(options):
    from lib import book

    book.build()


def _train(options):
    from lib import parallel

    parallel.run(options.file)


def _readme(options):
    from lib import readme

    readme.write()


def _notebooks(options):
    from lib import notebooks

    notebooks.refresh(options.names or None)


if __name__ == "__main__":
    sys.exit(main())
