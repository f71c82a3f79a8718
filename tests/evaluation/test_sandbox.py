"""The sandbox: right programs pass, wrong ones do not, and hostile ones do no harm."""

import os
import socket
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

from lz_penalty import LZPenaltyError
from lz_penalty.evaluation import sandbox
from lz_penalty.evaluation.sandbox import ISOLATIONS, best_isolation, passes, program_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox runs on Linux only")


@pytest.fixture(params=ISOLATIONS)
def run(request):
    """Run a program under each isolation that this machine allows."""
    if request.param == "namespaces" and best_isolation() != "namespaces":
        pytest.skip("this machine allows no namespaces")

    def run(program, **settings):
        return passes(textwrap.dedent(program), isolation=request.param, **settings)

    run.isolation = request.param
    return run


def descendants():
    """Return the processes that this process started."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return file.read().split()


# ---------------------------------------------------------------- outcomes


def test_a_program_that_ends_passes(run):
    outcome = run("import math, dataclasses\nprint(math.sqrt(49))")
    assert (outcome.passed, outcome.reason, outcome.isolation) == (True, "passed", run.isolation)
    assert outcome.output == "7.0\n"
    assert 0 <= outcome.seconds < 10


@pytest.mark.parametrize(
    "program",
    [
        "assert 1 == 2",
        "def",
        "\0",
        "\ud800",
        "raise SystemExit",
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os; os.abort()",
        "raise KeyboardInterrupt",
        "input()",
        "import numpy",
        "def f(): f()\nf()",
        "x = bytearray(10**10)",
        "x = []\nwhile True: x.append(bytearray(10**7))",
        "with open('big', 'wb') as file:\n    while True: file.write(bytes(10**6))",
        "import os\nwhile True: os.fork()",
        "import threading\nwhile True: threading.Thread(target=print).start()",
        "import subprocess\nsubprocess.run(['/bin/true'], check=True)",
        "import os\nos.closerange(0, 4096)",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'passed' * 9)\n    except OSError: pass",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'a\\n' * 9_999)\n    except OSError: pass",
    ],
)
def test_a_program_that_does_not_end_well_fails(run, program):
    outcome = run(program, memory=256 * 2**20)
    assert (outcome.passed, outcome.reason) == (False, "failed")


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(99)",
        "while True: print('x' * 10_000)",
        "import os\nos.setsid()\nwhile True: pass",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import signal\nfor one in signal.valid_signals() - {9, 19}: signal.signal(one, signal.SIG_IGN)\nwhile True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ],
)
def test_a_program_that_does_not_end_is_ended(run, program):
    before = descendants()  # other tests of this process may have started some
    outcome = run(program, seconds=0.3)
    assert (outcome.passed, outcome.reason) == (False, "timeout")
    assert outcome.seconds < 3
    assert len(outcome.output) <= sandbox.MAX_OUTPUT
    assert set(descendants()) <= set(before)


def test_recursion_without_limit_is_ended(run):
    program = "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()"
    assert not run(program, seconds=0.4, memory=128 * 2**20).passed


def test_a_program_gets_nothing(run, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    outcome = run("""
        import os, sys
        assert not os.environ, os.environ
        assert os.listdir() == []
        assert sys.stdin.read() == ""
        assert sys.argv == ["-c"]
        assert __name__ != "__main__"
        assert sys.flags.isolated
    """)
    assert outcome.passed, outcome.output


def test_what_is_printed_last_is_kept(run):
    outcome = run("print('x' * 10**7)\nprint('end')")
    assert outcome.passed
    assert outcome.output.endswith("x\nend\n")
    assert len(outcome.output) <= sandbox.MAX_OUTPUT


def test_the_token_is_not_in_the_program_s_reach_by_accident(run, monkeypatch):
    monkeypatch.setattr(sandbox.secrets, "token_hex", lambda size: "f00d" * 8)
    outcome = run("""
        import os, sys
        token, frame = ("f0" + "0d") * 2, sys._getframe().f_back
        assert frame
        while frame:
            assert token not in repr(frame.f_locals) + repr(frame.f_globals)
            frame = frame.f_back
        os.write = os.read = os._exit = sys.exit = None
    """)
    assert outcome.passed, outcome.output


# ---------------------------------------------------------------- isolation


def test_there_is_no_network(run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        socket.create_connection(address, 5).close()
        outcome = run(f"import socket\nsocket.create_connection({address!r}, 5)")
    assert outcome.reason == "failed"


def test_files_of_others_stay(run, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("here")
    for path in (tmp_path, victim):
        path.chmod(0o777)
    outcome = run(f"""
        import os, shutil
        from pathlib import Path
        path, done = Path({str(victim)!r}), []
        for harm in (path.unlink, lambda: path.write_text(""), lambda: path.rename("mine"), lambda: path.chmod(0),
                     lambda: shutil.rmtree(path.parent), lambda: os.truncate(path, 0), lambda: os.mkdir(path.parent / "new"),
                     lambda: os.open(path, os.O_RDWR), lambda: os.symlink("x", path.parent / "link")):
            try:
                harm()
            except OSError:
                continue
            done.append(harm)
        assert not done, done
        Path("own").write_text("fine")
        os.rename("own", "other")
        shutil.rmtree(os.getcwd(), ignore_errors=True)
    """)
    assert outcome.passed, outcome.output
    assert victim.read_text() == "here"
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]


def test_the_folder_is_removed(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run("import os\nos.makedirs('a/b')\nopen('a/b/c', 'w').write('x')\nos.chmod('a', 0)").passed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["os.getppid()", "0", "-1", "{}", "1"])
def test_this_process_cannot_be_killed(run, target):
    target, own = (
        target.format(os.getpid()),
        os.getpid(),
    )  # not in the name of the test: workers of pytest compare names
    outcome = run(f"import os, signal\nos.kill({target}, signal.SIGKILL)\nos.kill({own}, signal.SIGTERM)")
    assert not outcome.passed
    assert passes("").passed


def test_the_limit_on_memory_can_be_set(run):
    program = "x = bytearray(300 * 2**20)"
    assert run(program).passed
    assert not run(program, memory=200 * 2**20).passed


def refusing():
    source = Path(sandbox.__file__).with_name("_sandbox_runner.py").read_text(encoding="utf-8")
    made = source.replace(
        "    user, group, here", "    raise OSError(1, 'unshare: not permitted')\n    user, group, here"
    )
    assert made != source
    return made


def test_a_machine_without_namespaces(monkeypatch):
    monkeypatch.setattr(sandbox, "_runner", refusing)
    best_isolation.cache_clear()
    try:
        assert passes("").isolation == best_isolation() == "hook"
        with pytest.raises(LZPenaltyError, match=r"does not allow it \(\[Errno 1\] unshare: not permitted\).*='hook'"):
            passes("", isolation="namespaces")
        monkeypatch.setattr(sandbox, "_runner", lambda: "print('no module')")
        with pytest.raises(LZPenaltyError, match="the sandbox did not start: 'no module"):
            passes("")
    finally:
        best_isolation.cache_clear()


def test_mistakes_are_explained(monkeypatch):
    for settings, message in (
        ({"seconds": 0}, "seconds = 0: must be"),
        ({"memory": 1}, "memory = 1: must be"),
        ({"isolation": "prayer"}, "isolation = 'prayer': must be one of None, 'namespaces', 'hook'"),
        ({"program": "x" * 2_000_000}, "program = 'xx.*: must be a text of at most 1048576"),
    ):
        with pytest.raises(LZPenaltyError, match=message):
            passes(**({"program": ""} | settings))
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    with pytest.raises(LZPenaltyError, match="runs on Linux only; this is darwin"):
        passes("")


# ---------------------------------------------------------------- programs

PROMPT = '''from typing import List


def helper(x):
    return x + 1


def double_all(numbers: List[int]) -> List[int]:
    """Return the doubled numbers.
    >>> double_all([1, 2])
    [2, 4]
    """
'''
TEST = "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n    assert candidate([]) == []\n"
WHOLE = "def double_all(numbers: List[int]) -> List[int]:\n    return [2 * helper(one - 1) for one in numbers]\n"


@pytest.mark.parametrize(
    "answer",
    [
        "    return [2 * one for one in numbers]\n",
        "return [2 * one for one in numbers]",
        "made = []\n    for one in numbers:\n        made.append(2 * one)\n    return made",
        "made = []\nfor one in numbers:\n    made.append(2 * one)\nreturn made",
        "    return [2 * one for one in numbers]\n\n\ndef other():\n    return (",
        f"Here it is:\n\n```python\n{WHOLE}```\nIt doubles.",
        f"```py\nfrom __future__ import annotations\n{WHOLE}```",
        f"```python\ndef double_all(numbers):\n    return 1\n```\nBetter:\n```python\n{WHOLE}```\nUse it:\n```\nx = 1\n```",
        f"```python\n{WHOLE}",
        "```python\n    return [2 * one for one in numbers]\n```",
        f"<think>```python\nreturn 1\n```</think>{WHOLE}",
        f"Here it is:\n\nimport math\nX: int = 3\n{WHOLE}\nThis function doubles.",
        WHOLE + "\nif __name__ == '__main__':\n    print(input())\n",
    ],
)
def test_code_is_found_in_an_answer(answer):
    outcome = passes(program_of(PROMPT, answer, TEST, "double_all"))
    assert outcome.passed, outcome.output


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "    pass",
        "I cannot do this.",
        "```python\ndef other(numbers):\n    return numbers\n```",
        "    return numbers",
        "    import sys; sys.exit(0)",
        "    return [2 * one for one in numbers]\n\nimport os\nos._exit(0)\n```",
        "```python\nimport os\ndef double_all(numbers):\n    os._exit(0)\n```",
    ],
)
def test_a_wrong_answer_does_not_pass(answer):
    program = program_of(PROMPT, answer, TEST, "double_all")
    assert passes(program).passed is (answer.startswith("    return [2"))


def test_a_loop_is_read_in_linear_time():
    begin = time.process_time()
    for piece in ("```", "```python\n", "def double_all(", "    x = 1\n", "\n", " ", "from __future__ import "):
        assert program_of(PROMPT, piece * 50_000, TEST, "double_all")
    assert time.process_time() - begin < 2


def test_an_entry_point_is_a_name():
    with pytest.raises(LZPenaltyError, match="entry_point = 'f\\(\\)': must be the name of a function"):
        program_of(PROMPT, "", TEST, "f()")
