"""Study files: what they become, and the sentence for each mistake."""

import subprocess
import sys

import pytest

from lossnav.studies.spec import Study, StudyError, read

GOOD = """
name = "quick"
[tasks.digits]
kind = "digits"
hidden = [64]
[rules.sgd]
kind = "torch.optim.SGD"
momentum = 0.9
grid.lr = [0.03, 0.1, 0.3]
[rules.adam]
kind = "torch.optim.Adam"
[rules.adam.grid]
lr = [0.001, 0.01, 0.1]
[budget]
epochs = 10
[seeds]
tuning = [0, 1]
reporting = [10, 11, 12]
[training]
schedule = "cosine"
warmup = 0.1
clip = 5.0
"""


def write(folder, text):
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_everything_that_a_file_says_is_in_the_study(tmp_path):
    study = read(write(tmp_path, GOOD))
    budget, training = study.budget, study.training
    assert (study.name, budget.epochs, budget.steps, budget.trials) == ("quick", 10.0, None, None)
    assert study.tasks["digits"].settings == {"hidden": [64]}
    assert study.rules["sgd"].settings == {"momentum": 0.9}
    assert study.rules["adam"].grid == {"lr": [0.001, 0.01, 0.1]}
    assert (study.seeds.tuning, study.seeds.reporting) == ((0, 1), (10, 11, 12))
    assert study.schedule == {"kind": "cosine", "warmup": 0.1}
    assert (training.clip, training.threads, training.evaluations) == (5.0, 1, 10)
    assert study.text == GOOD
    assert study.folder == tmp_path


def test_the_same_twice_is_equal_and_a_dict_gives_it_back(tmp_path):
    path = write(tmp_path, GOOD)
    assert read(path) == read(path)
    study = read(path)
    again = Study.from_dict(study.to_dict())
    assert again.to_dict() == study.to_dict()
    assert again == Study.from_dict(study.to_dict())
    tuples = study.to_dict()
    tuples["tasks"]["digits"]["hidden"] = (64,)
    assert Study.from_dict(tuples) == again  # a tuple is a list, as it is in JSON


def test_a_rule_without_a_grid_is_given_back_without_one():
    values = {
        "name": "a",
        "tasks": {"t": {"kind": "digits"}},
        "rules": {"sgd": {"kind": "torch.optim.SGD", "lr": 1}},
        "budget": {"steps": 3},
        "seeds": {"reporting": [1]},
    }
    found = Study.from_dict(values)
    assert found.to_dict()["rules"] == {"sgd": {"kind": "torch.optim.SGD", "lr": 1.0}}
    assert Study.from_dict(found.to_dict()) == found
    assert found.rules["sgd"].size == 1


MISTAKES = {
    # name of the case: (what is replaced, by what, line, what the sentence has)
    "unknown key": ("[budget]", "[bugdet]", 14, ["'bugdet'", "did you mean 'budget'"]),
    "unknown seed": ("tuning =", "tunning =", 17, ["'tunning'", "did you mean 'tuning'"]),
    "unknown training": ("warmup", "warm_up", 21, ["'warm_up'", "'warmup'"]),
    "no such schedule": ('"cosine"', '"cosin"', 20, ["'cosin'", "'cosine'"]),
    "warmup above one": ("warmup = 0.1", "warmup = 10", 21, ["10", "fraction"]),
    "empty grid": ("[0.03, 0.1, 0.3]", "[]", 9, ["lr is empty", "at least one"]),
    "empty grid table": ("lr = [0.001, 0.01, 0.1]\n", "", 12, ["grid is empty"]),
    "no list in a grid": ("[0.03, 0.1, 0.3]", "0.1", 9, ["list", "0.1"]),
    "unequal grids": (
        "[0.03, 0.1, 0.3]",
        "[0.03, 0.1]",
        6,
        ["sgd has 2", "adam has 3", "trials = 2"],
    ),
    "too few to draw": (
        "epochs = 10",
        "epochs = 10\ntrials = 4",
        6,
        ["3 of the 4", "lower trials"],
    ),
    "a value twice": ("[0.03, 0.1, 0.3]", "[0.03, 0.1, 0.1]", 9, ["0.1", "twice"]),
    "lr is NaN": ("0.03,", "nan,", 9, ["nan cannot be a setting", "finite"]),
    "lr is zero": ("0.03,", "0.0,", 9, ["lr is 0", "greater than 0"]),
    "lr is negative": ("0.03,", "-1,", 9, ["lr is -1"]),
    "lr is a text": ("0.03,", '"0.03",', 9, ["lr is '0.03'", "number greater than 0"]),
    "fixed lr": (
        "momentum = 0.9",
        "momentum = 0.9\nlr = 0.1",
        10,
        ["lr is fixed at 0.1", "keep one"],
    ),
    "infinite setting": ("momentum = 0.9", "momentum = inf", 8, ["inf", "finite"]),
    "a date": ("momentum = 0.9", "momentum = 2020-01-01", 8, ["cannot be a setting"]),
    "seed twice": ("[0, 1]", "[0, 0]", 17, ["0 is listed twice"]),
    "seeds overlap": (
        "[10, 11, 12]",
        "[1, 11]",
        18,
        ["1 is among the tuning seeds", "other seeds"],
    ),
    "seed of a half": ("[0, 1]", "[0.5]", 17, ["whole number", "0.5"]),
    "seed is true": ("[0, 1]", "[true]", 17, ["whole number", "True"]),
    "negative seed": ("[0, 1]", "[-1]", 17, ["-1"]),
    "no tuning seeds": ("tuning = [0, 1]\n", "", 16, ["3 points", "no tuning seeds"]),
    "no reporting seeds": ("reporting = [10, 11, 12]", "", 16, ["no reporting seeds"]),
    "both budgets": (
        "epochs = 10",
        "epochs = 10\nsteps = 5",
        14,
        ["both epochs = 10 and steps = 5"],
    ),
    "no budget": ("epochs = 10", "", 14, ["neither epochs nor steps"]),
    "no time": ("epochs = 10", "epochs = 0", 15, ["epochs is 0", "greater than 0"]),
    "half a step": ("epochs = 10", "steps = 1.5", 15, ["steps is 1.5", "a whole number from 1"]),
    "bad name": ('"quick"', '"../quick"', 2, ["'../quick'", "folder"]),
    "reserved name": ('"quick"', '"nul"', 2, ["'nul'", "folder"]),
    "no name": ('name = "quick"', "", None, ["needs a name"]),
    "name of a rule": ("[rules.sgd]", '[rules."a/b"]', 6, ["'a/b'", "slashes"]),
    "no kind": ('kind = "digits"', "", 3, ["needs a kind", "digits"]),
    "no table": ("[tasks.digits]", "[tasks]", 4, ["must be a table"]),
    "negative clip": ("clip = 5.0", "clip = -5", 22, ["clip is -5"]),
    "no threads": ("clip = 5.0", "threads = 0", 22, ["threads", "1 to 1024", "0"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_sentence_with_its_place(mistake, tmp_path):
    old, new, line, said = MISTAKES[mistake]
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(StudyError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}, line {line} (" if line else f"{path}: ")
    assert all(part in text for part in said), text
    assert "\n" not in text
    assert text.endswith((".", "?"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "needs a name"),
        ('name = "a"', "there are no tasks"),
        ('name = "a"\n[tasks.a]\nkind = "digits"', "there are no rules"),
        ("name = ", "not valid TOML"),
        ('name = "a"\ntasks = 3', "must be a table"),
        ("a = " + "[" * 5000, "not valid TOML"),
        ("# " + "x" * (1 << 20), "larger than"),
    ],
)
def test_files_that_are_hardly_studies(text, said, tmp_path):
    with pytest.raises(StudyError, match=said):
        read(write(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(StudyError, match="There is no file"):
        read(tmp_path / "none.toml")
    with pytest.raises(StudyError, match="not a file"):
        read(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "a"\n# caf\xe9')
    with pytest.raises(StudyError, match="line 2: this is not UTF-8"):
        read(tmp_path / "latin.toml")


def test_a_line_that_only_looks_like_a_key_is_not_taken_for_one(tmp_path):
    text = GOOD.replace("hidden = [64]", 'note = """\n[seeds]\ntuning = [7]\n"""')
    with pytest.raises(StudyError, match=r"line 20 \(seeds.tuning"):
        read(write(tmp_path, text.replace("tuning = [0, 1]", "tuning = [0, -1]")))


def test_a_grid_too_large_is_refused(tmp_path):
    many = ", ".join(str(1 + i / 1000) for i in range(400))
    text = GOOD.replace("[0.03, 0.1, 0.3]", f"[{many}]\ngrid.nesterov = [{many}]")
    with pytest.raises(StudyError, match="160000 points"):
        read(write(tmp_path, text))


def test_a_bad_file_is_refused_without_importing_torch(tmp_path):
    path = write(tmp_path, GOOD.replace("[0, 1]", "[0, 0]"))
    code = (
        "import sys; from lossnav.studies.spec import read\n"
        f"try: read({str(path)!r})\nexcept ValueError: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
