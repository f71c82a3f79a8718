"""`lz-penalty detect`, each run in a process of its own."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from lz_penalty import LZPenaltyError
from lz_penalty import _files as files
from tests.support import commands, quick_or_deep
from tests.support.documents import BROKEN, FINE, LOOP, fill, lines, rows_of, write_broken
from tests.support.judge_server import serve, verdict

KEY = "sk-test-0123456789abcdef"


def run(*arguments, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess:
    proxies = {name: "" for name in os.environ if name.lower().endswith("_proxy")}
    done = commands.run("detect", *arguments, given=stdin, env={**proxies, "COLUMNS": "200", **environment})
    assert "Traceback" not in done.stderr
    return done


def summary(*arguments, code: int = 0, **more) -> dict:
    done = run(*arguments, "--json", **more)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path):
    return fill(tmp_path)


def test_every_kind_of_file_at_once(folder):
    found = summary(*(folder / name for name in ("loop.txt", "fine.md", "some.jsonl", "some.parquet")))
    assert (found["documents"], found["flagged"], found["problems"]["count"]) == (9, 5, 0)
    assert found["share"] == found["criteria"]["tandem"]["share"] == 5 / 9
    assert found["criteria"]["tandem"]["wasted"] == 4 * (400 - 4) + (800 - 4)
    assert found["characters"] == 4 * 400 + 800 + 4 * len(FINE)
    worst = found["worst"]
    assert [(one["source"], one["line"]) for one in worst[:2]] == [
        (str(folder / "some.jsonl"), 2),
        (str(folder / "loop.txt"), None),
    ]
    assert worst[0]["verdicts"][0] == {
        "criterion": "tandem", "start": 0, "length": 800, "copies": 200.0, "unit": "No! ", "wasted": 796, "skeleton": None,
        "unit_length": 4,
    }  # fmt: skip


def test_the_table(folder):
    (folder / "strange.txt").write_text("\x1b[31m[bold]\n\t" * 40)
    shown = run(folder / "loop.txt", folder / "strange.txt", folder / "fine.md")
    assert shown.returncode == 0
    assert "documents: 3" in shown.stdout
    assert "66.67%" in shown.stdout
    assert r"'\x1b[31m[bold]\n\t'" in shown.stdout  # escaped: a terminal would obey it
    assert "\x1b[31m" not in shown.stdout
    assert len(run(folder / "loop.txt", "--worst", "0").stdout) < len(shown.stdout)


def test_long_units_are_cut(folder):
    unit = "".join(f"word{number} " for number in range(300))
    (folder / "long.txt").write_text(unit * 6)
    found = summary(folder / "long.txt")["worst"][0]["verdicts"][0]
    assert found["unit"] == unit[:200]
    assert found["unit_length"] == len(unit)
    assert unit[:100] not in run(folder / "long.txt").stdout


def test_standard_input(folder):
    assert summary("-", stdin=LOOP.encode())["flagged"] == 1
    found = summary("-", "--format", "jsonl", stdin=lines(FINE, LOOP))
    assert (found["documents"], found["flagged"]) == (2, 1)
    assert "-: is empty." in run("-").stderr


def test_a_field_means_json_lines(folder):
    (folder / "some.json").write_bytes(lines(FINE, LOOP, field="response"))
    whole = run(folder / "some.json", folder / "some.json", "--fail-if-any")
    assert whole.returncode == 0
    assert len(whole.stderr.splitlines()) == 1
    assert "some.json was read as one text, and begins as JSON does. If it has JSON lines, add --field" in whole.stderr
    assert run(folder / "some.json", "--format", "text").stderr == ""
    asked = ("--field", "response", "--fail-if-any")
    assert summary(folder / "some.json", *asked, code=1)["documents"] == 2
    found = summary("-", *asked, code=1, stdin=(folder / "some.json").read_bytes())
    assert (found["documents"], found["flagged"]) == (2, 1)


@pytest.mark.parametrize("text", ["[Verse 1]\nNo", "{\\bf bold} text", '"quoted"'])
def test_other_texts_get_no_hint(folder, text):
    (folder / "text").write_text(text)
    assert run(folder / "text").stderr == ""


def test_the_field_may_lie_deep(folder):
    rows = [{"choices": [{"message": {"content": text}}]} for text in (FINE, LOOP)]
    (folder / "deep.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert summary(folder / "deep.jsonl", "--field", "choices.0.message.content")["flagged"] == 1
    assert summary(folder / "deep.jsonl", "--field", "choices.-1.message.content")["flagged"] == 1
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "deep.parquet")
    assert summary(folder / "deep.parquet", "--field", "choices.0.message.content")["flagged"] == 1


def test_all_of_it_at_once_in_a_process(folder):
    files = [write_broken(folder, name) for name in BROKEN]
    done = run(*files, folder / "some.jsonl", "--json", "--out", folder / "out.jsonl")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == len(BROKEN)
    for line, (*_, message, _) in zip(done.stderr.splitlines(), BROKEN.values()):
        assert line.startswith(f"lz-penalty: {folder}/{message}")
    found = json.loads(done.stdout)
    assert found["flagged"] == sum(loops for *_, loops in BROKEN.values()) + 2
    assert [row for row in rows_of(folder / "out.jsonl") if "message" in row] == found["problems"]["first"]


def test_a_missing_column_and_nulls(folder):
    assert "has no column 'body'; its columns are text, other" in run(folder / "some.parquet", "-f", "body").stderr
    table = pyarrow.table({"text": [LOOP, None, LOOP]})
    pyarrow.parquet.write_table(table, folder / "null.parquet")
    done = run(folder / "null.parquet", "--json")
    assert done.returncode == 3
    assert "null.parquet:2: there is no field 'text'" in done.stderr
    assert json.loads(done.stdout)["flagged"] == 2


def test_a_folder_is_named(folder):
    assert "Is a directory" in run(folder).stderr


def test_the_size_of_a_record_is_bounded(folder):
    (folder / "wide.jsonl").write_bytes(lines(FINE, "x" * 5_000, LOOP, "y" * 5_000))
    (folder / "wide.txt").write_text("z" * 5_000)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x" * 5_000, LOOP]}), folder / "wide.parquet")
    done = run(*(folder / f"wide.{end}" for end in ("jsonl", "txt", "parquet")), "--max-record", 1_000, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["documents"], found["flagged"]) == (3, 2)
    places = [(os.path.basename(one["source"]), one["line"]) for one in found["problems"]["first"]]
    assert places == [("wide.jsonl", 2), ("wide.jsonl", 4), ("wide.txt", None), ("wide.parquet", 1)]
    assert all("longer than 1,000 bytes; raise --max-record" in one["message"] for one in found["problems"]["first"])


def test_many_problems_are_counted_and_not_all_shown(folder):
    (folder / "bad.jsonl").write_bytes(b"{\n" * 500)
    done = run(folder / "bad.jsonl", "--json", "--out", folder / "out.jsonl")
    assert len(done.stderr.splitlines()) == 21
    assert json.loads(done.stdout)["problems"]["count"] == 500
    assert len((folder / "out.jsonl").read_text().splitlines()) == 500


def test_the_exit_code_says_what_was_asked(folder):
    loops, fine = folder / "some.jsonl", folder / "fine.md"  # 2 of 4; none
    assert run(loops).returncode == 0
    assert run(loops, "--fail-if-any").returncode == 1
    assert run(fine, "--fail-if-any").returncode == 0
    assert run(loops, "--fail-over", 0.49).returncode == 1
    assert run(loops, "--fail-over", 0.5).returncode == 0
    assert run(fine, folder / "gone", "--fail-if-any").returncode == 3
    assert run(loops, folder / "gone", "--fail-if-any").returncode == 1


def test_limits(folder):
    (folder / "rule.txt").write_text("-" * 50)
    files = folder / "rule.txt", folder / "loop.txt"
    assert summary(*files)["flagged"] == 1
    assert summary(*files, "--min-copies", 101)["flagged"] == 0
    assert summary(*files, "--min-length", 50)["flagged"] == 2
    assert summary(*files, "--min-length", 401)["flagged"] == 0


def test_a_loop_that_ended_counts_where_it_is_asked_for(folder):
    (folder / "ended.txt").write_text(f"{LOOP}{FINE}")
    (folder / "newline.txt").write_text(f"{FINE}{LOOP}\n")  # the last newline is the file's
    assert summary(folder / "ended.txt", folder / "newline.txt")["flagged"] == 1
    assert summary(folder / "ended.txt", folder / "newline.txt", "--anywhere")["flagged"] == 2


OTHERS = {
    "drift": "".join(f"{word}! " * 12 for word in ("Look", "This", "Third", "We", "Non", "Well")),
    "counter": "".join(f"Step {number}: check it again. " for number in range(17, 60)),
    "edited": "".join(
        f"and the one who said it went {word} to the old house by the sea, " for word in "abcdefghijklmnopqrstuvwx"
    ),
    "paper20": "".join(f"the {word} " for word in "abcdefghijklmnopqrstuvwxyz"),
    "tandem": LOOP,
}


def test_every_criterion_by_name(folder):
    for name, text in OTHERS.items():
        (folder / f"{name}.txt").write_text(text)
    named = [option for name in OTHERS for option in ("-c", name)]
    files = [folder / f"{name}.txt" for name in OTHERS]
    summary(*files, folder / "fine.md", *named, "-o", folder / "out.jsonl", "--every")
    found = {
        os.path.basename(row["source"]): {one["criterion"]: one for one in row["verdicts"]}
        for row in rows_of(folder / "out.jsonl")
    }
    assert found.pop("fine.md") == {}
    for name, text in OTHERS.items():
        mine = found[f"{name}.txt"][name]
        assert 0 <= mine["start"] <= mine["start"] + mine["length"] <= len(text)
        assert mine["copies"] >= 5
        assert mine["wasted"] is None if name == "paper20" else 0 < mine["wasted"] < mine["length"]
    assert "tandem" not in {criterion for name in OTHERS if name != "tandem" for criterion in found[f"{name}.txt"]}


def test_results_on_disk(folder):
    out = folder / "out.jsonl"
    run(folder / "some.jsonl", "--out", out)
    assert [row["line"] for row in rows_of(out)] == [2, 4]
    run(folder / "some.jsonl", "--out", out, "--every")
    assert [len(row["verdicts"]) for row in rows_of(out)] == [0, 1, 0, 1]
    assert not list(folder.glob("*.part"))
    content = (folder / "some.jsonl").read_bytes()
    assert run(folder / "some.jsonl", "--out", folder / "some.jsonl").returncode == 2
    assert (folder / "some.jsonl").read_bytes() == content


def test_results_are_written_to_no_other_file(folder):
    """Neither the file that a link names nor a file with a name that can be guessed is written to."""
    victim, out = folder / "victim", folder / "out.jsonl"
    victim.write_text("mine")
    out.symlink_to(victim)
    process = subprocess.Popen(
        [sys.executable, "-m", "lz_penalty", "detect", "-", "--out", str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    (folder / f"out.jsonl.{process.pid}.part").symlink_to(victim)
    process.communicate(LOOP.encode())
    assert process.returncode == 0
    assert victim.read_text() == "mine"
    assert not out.is_symlink()
    assert len(rows_of(out)) == 1


def test_results_keep_the_permissions_of_the_file_before(folder):
    out = folder / "out.jsonl"
    run(folder / "some.jsonl", "--out", out)
    assert out.stat().st_mode & 0o777 == 0o666 & ~_umask()
    out.chmod(0o600)
    run(folder / "some.jsonl", "--out", out, "--every")
    assert (out.stat().st_mode & 0o777, len(rows_of(out))) == (0o600, 4)
    assert run(folder / "some.jsonl", "--out", "/dev/stdout").stdout.startswith('{"source"')


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs names for descriptors")
def test_names_of_open_files_are_written_to_and_not_replaced(folder):
    """`--out /dev/stdout > file` names a link to that file. The link must stay."""
    with open(folder / "opened", "wb") as file:
        name = f"/dev/fd/{file.fileno()}"
        files.write_file(Path(name), "told")
        assert os.path.islink(name)
        assert files._is_written_in_place(Path("/dev/stdout"), os.stat(folder / "opened"))
    assert (folder / "opened").read_text() == "told"


def test_a_file_that_cannot_be_replaced_is_written(folder, monkeypatch):
    """A file that a container has mounted, and a file in another user's folder."""
    out = folder / "mounted"
    out.write_text("before")

    def busy(*_):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    files.write_file(out, "after")
    assert out.read_text() == "after"
    assert [path for path in folder.iterdir() if path.suffix == ".part"] == []
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and allowed(path, mode))
    files.write_file(out, "again")
    assert out.read_text() == "again"
    with pytest.raises(LZPenaltyError, match="Permission denied"):
        files.write_file(folder / "new", "x")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_more_processes_give_the_same(folder):
    (folder / "many.jsonl").write_bytes(b"".join(lines(FINE, LOOP * (n % 7), "x" * 20_000) for n in range(200)))
    (folder / "some.jsonl").write_bytes(lines(LOOP) + b"{\n" + lines(LOOP))
    results = []
    for workers in (1, quick_or_deep(2, 3)):
        out = folder / f"out{workers}.jsonl"
        done = run(folder / "many.jsonl", folder / "some.jsonl", "-w", workers, "-o", out, "--every", "--json")
        assert done.returncode == 3
        results.append((done.stdout, done.stderr, out.read_text()))
    assert results[0] == results[1]


def test_workers_that_cannot_start_are_one_line(folder):
    script = (
        f"from lz_penalty.detection.scan import *\nlist(scan([{str(folder / 'some.jsonl')!r}], Scan(), workers=2))\n"
    )
    (folder / "script.py").write_text(script)
    done = subprocess.run([sys.executable, str(folder / "script.py")], capture_output=True, text=True, check=False)
    assert "LZPenaltyError: workers = 2: a worker process ended" in done.stderr


def judge_first_loop_only(request: dict, _: int) -> tuple:
    return verdict(json.dumps(LOOP)[1:-1] * 2 in request["messages"][1]["content"])


def test_the_judge(folder, tmp_path):
    with serve(judge_first_loop_only) as server:
        given = ("--judge-url", server.url, "--judge-model", "m", "--judge-cache", tmp_path / "cache.db")
        given += ("--judge-prices", "1,10")
        environment = {"OPENAI_API_KEY": KEY}
        found = summary(folder / "some.jsonl", *given, "-o", folder / "out.jsonl", **environment)
        assert len(server.requests) == 2  # the flagged ones
        assert found["judge"] == {"asked": 2, "loop": 1, "no loop": 1, "unknown": 0}
        assert found["dual"] == {"loop": 1, "unknown": 0, "share": 0.25}
        assert found["usage"]["cost"] == pytest.approx(200e-6 + 200e-6)
        rows = rows_of(folder / "out.jsonl")
        assert [(row["line"], row["judge"]["loop"], row["dual"]) for row in rows] == [
            (2, True, True),
            (4, False, False),
        ]
        again = run(folder / "some.jsonl", *given, **environment)
        assert len(server.requests) == 2
        assert "2 cached" in again.stdout
        assert "both (dual)" in again.stdout
        found = summary(folder / "some.jsonl", *given, "--judge", "all", **environment)
        assert len(server.requests) == 3  # the fine text, which is there twice
        assert found["judge"] == {"asked": 4, "loop": 1, "no loop": 3, "unknown": 0}
        assert KEY in server.headers[0]["authorization"]


def test_a_judge_without_an_answer_is_unknown(folder):
    with serve(lambda *_: (401, {"error": {"message": f"bad key {KEY}"}})) as server:
        given = ("--judge-url", server.url, "--judge-model", "m", "-o", folder / "out.jsonl")
        done = run(folder / "some.jsonl", *given, "--fail-if-any", "--json", OPENAI_API_KEY=KEY)
    assert done.returncode == 3
    assert "some.jsonl:2: not judged: AuthenticationError" in done.stderr
    found = json.loads(done.stdout)
    assert found["judge"]["unknown"] == found["dual"]["unknown"] == 2
    written = (folder / "out.jsonl").read_text()
    assert [json.loads(line)["dual"] for line in written.splitlines()] == [None, None]
    assert "bad key ***" in written
    assert KEY not in written


BAD = {
    "unknown criterion": (("--criterion", "tandme"), "criterion = 'tandme': must be one of 'tandem'"),
    "too few copies": (("--min-copies", "1"), "min_copies = 1.0: must be a finite number from 2"),
    "NaN copies": (("--min-copies", "nan"), "min_copies = nan"),
    "no length": (("--min-length", "0"), "min_length = 0"),
    "unknown format": (("--format", "csv"), "format = 'csv'"),
    "a field of a text": (
        ("--format", "text", "--field", "text"),
        "field = 'text': a file of the format text has no fields",
    ),
    "empty field": (("--field", "a..b"), "field = 'a..b'"),
    "two signs": (("--field", "a.--1"), "field = 'a.--1': must be names and numbers separated by dots"),
    "record too large": (("--max-record", 2**40), "max_record"),
    "no workers": (("--workers", "0"), "workers = 0"),
    "workers and Ray": (("--ray", "--workers", "2"), "cannot be used together"),
    "Ray address": (("--ray-address", "127.0.0.1:1"), "cannot be reached"),
    "a judge without a model": (("--judge-url", "http://localhost"), "need --judge-model"),
    "a judge at no address": (("--judge-url", "localhost", "--judge-model", "m"), "http://localhost:8000/v1"),
    "prices": (("--judge-model", "m", "--judge-prices", "much"), "two numbers, such as 2.5,10"),
    "judge": (("--judge", "some"), "flagged or all"),
    "all without a judge": (("--judge", "all"), "needs --judge-model"),
    "every to nowhere": (("--every",), "needs --out"),
    "a folder for a file": (("--out", "."), "is a folder"),
    "anywhere without effect": (("-c", "drift", "--anywhere"), "none is requested"),
    "limits without effect": (("-c", "drift", "--min-copies", "9"), "which is not requested"),
    "out": (("--out", "no/such/folder/out.jsonl"), "cannot be written"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_one_line_and_exit_code_2(folder, name):
    arguments, message = BAD[name]
    done = run(folder / "some.jsonl", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("module", "extra", "file"), [("pyarrow", "detect", "some.parquet"), ("pyarrow", "detect", "x.zst")]
)
def test_without_a_library_it_says_what_to_install(folder, module, extra, file):
    (folder / "x.zst").write_bytes(b"")
    hidden = f"import sys; sys.modules[{module!r}] = None; sys.argv = ['lz-penalty', 'detect', {str(folder / file)!r}]"
    code = hidden + "; from lz_penalty.cli import main; main()"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert shown.returncode == 2
    assert shown.stderr.strip() == f"lz-penalty: this needs {module}: pip install 'lz-penalty[{extra}]'"
