"""The documents name every key and every stack, and their links lead somewhere."""

import re
from collections import Counter
from pathlib import Path

import pytest

from autoplan.results.sweep import CellAnswer, ServingCellAnswer
from autoplan.schema.costmodel.engine_kernels import SmallGemmTable
from autoplan.schema.costmodel.kernel_spec import KernelSpec
from autoplan.schema.costmodel.stack import StackSpec
from autoplan.schema.grid_spec import GridSpec
from autoplan.schema.job import JobSpec, Limits, SearchSpec, Workload
from autoplan.schema.serving.engine_stack import DefaultTier, EngineFacts, GraphTier
from autoplan.schema.serving.request_lengths import ServingWorkload
from autoplan.schema.serving.serving_choices import ServingLimits, ServingSearchSpec
from autoplan.schema.serving.serving_spec import ServingSpec
from docs.book.contents import chapters
from docs.generate_reference import PAGES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HIDDEN = {"build", "dist", "node_modules"}
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in HIDDEN for part in path.relative_to(ROOT).parts)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
STACKS = sorted(path.stem for path in (ROOT / "costmodels" / "stacks").glob("*.yaml"))


def names_of(model):
    """Return the keys of a schema as a file writes them."""
    return sorted(field.alias or name for name, field in model.model_fields.items())


def fields_below(model):
    """Return the keys of every number and switch in a schema's sections."""
    sections = (field.annotation for field in model.model_fields.values())
    return sorted({key for part in sections if hasattr(part, "model_fields") for key in part.model_fields})


def anchors(text):
    """Return the anchors that headings of a document have on the usual hosts."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("model", [JobSpec, SearchSpec, Limits, Workload], ids=lambda m: m.__name__)
def test_every_key_of_a_job_is_explained(model):
    """Whoever writes a job finds each of its keys in the README of the jobs."""
    text = (ROOT / "specs" / "jobs" / "README.md").read_text(encoding="utf-8")
    missing = [name for name in names_of(model) if not re.search(rf"`(?:\w+\.)?{name}`", text)]

    assert missing == []


@pytest.mark.parametrize(
    "model", [ServingSpec, ServingSearchSpec, ServingLimits, ServingWorkload], ids=lambda m: m.__name__
)
def test_every_key_of_a_serving_job_is_explained(model):
    """Whoever writes a serving job finds each of its keys in the README of these jobs."""
    text = (ROOT / "specs" / "serving" / "README.md").read_text(encoding="utf-8")
    missing = [name for name in names_of(model) if not re.search(rf"`(?:\w+\.)?{name}`", text)]

    assert missing == []


def test_every_engine_and_every_field_of_its_facts_is_explained():
    """An engine that can be named in a job, and what its file says, is in the README of the cost models."""
    text = (ROOT / "costmodels" / "README.md").read_text(encoding="utf-8")
    engines = [path.stem for path in (ROOT / "costmodels" / "engines").glob("*.yaml")]
    parts = [field.annotation for field in EngineFacts.model_fields.values()]
    optional = [part for union in parts for part in (union, *getattr(union, "__args__", ()))]
    sections = [part for part in optional if hasattr(part, "model_fields")]
    sections += [DefaultTier, GraphTier, SmallGemmTable]
    fields = {key for part in sections for key in part.model_fields}

    assert [name for name in engines if f"| `{name}` |" not in text] == []
    assert len(sections) >= 11
    assert sorted(name for name in fields if not re.search(rf"`(?:\w+\.)?{name}`", text)) == []


def test_every_key_and_column_of_a_sweep_is_explained():
    """Whoever writes a grid, or reads its results, finds each key and column in the README of the grids."""
    text = (ROOT / "specs" / "grids" / "README.md").read_text(encoding="utf-8")
    answers = (CellAnswer, ServingCellAnswer)
    names = [*names_of(GridSpec), *(name for kind in answers for name in kind.__dataclass_fields__)]

    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("stack", STACKS)
def test_every_stack_is_listed(stack):
    """A stack that can be named in a job is in the README of the cost models."""
    text = (ROOT / "costmodels" / "README.md").read_text(encoding="utf-8")

    assert f"| `{stack}` |" in text


@pytest.mark.parametrize("model", [KernelSpec, StackSpec], ids=lambda m: m.__name__)
def test_every_field_of_a_cost_model_is_explained(model):
    """Fields of kernels and stacks are in the README, but for the stack's rules, which explain themselves."""
    text = (ROOT / "costmodels" / "README.md").read_text(encoding="utf-8")
    rules = set(StackSpec.model_fields["rules"].annotation.model_fields)
    missing = [
        name
        for name in fields_below(model)
        if name not in rules and not re.search(rf"`(?:\w+\.)?{name}`", text)
    ]

    assert missing == []


def test_the_cost_models_say_first_that_they_hold_no_formulas():
    """A folder of that name sounds like code, so its README begins by saying that it is not."""
    _, body = (ROOT / "costmodels" / "README.md").read_text(encoding="utf-8").split("\n\n", 1)

    assert body.startswith("Coefficients, not formulas: the formulas are in")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document):
    """A relative link names a file or folder that is there, and an anchor a heading of it."""
    broken = []
    for link in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        inside = target.exists() and target.is_relative_to(ROOT)
        if not inside or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)

    assert broken == []


def pages_of_the_folder():
    """Return the paths of all pages below docs/, relative to it."""
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_every_document_of_the_folder_is_in_the_contents_once():
    """The contents of the book, which are the tables of docs/README.md, lead to every page below docs/."""
    parts = chapters((DOCS / "README.md").read_text(encoding="utf-8"))
    listed = [path for chapter in parts for _, path in chapter.pages]
    titles = [title for chapter in parts for title, _ in chapter.pages]

    assert [page for page in pages_of_the_folder() if page != "README.md" and page not in listed] == []
    assert [path for path in listed if not (DOCS / path).exists()] == []
    assert [path for path, times in Counter(listed).items() if times > 1] == []
    assert [title for title, times in Counter(titles).items() if times > 1] == []
    assert len(parts) >= 6


def test_a_page_that_nobody_listed_is_noticed():
    """An entry is a row or an item that begins with a link; a link within a sentence is none."""
    text = "## Part\n\nSee [this](a.md).\n\n| [One](b.md) | [two](c.md) |\n- [Three](d.md): x\n"

    assert [chapter.pages for chapter in chapters(text)] == [(("One", "b.md"), ("Three", "d.md"))]


@pytest.mark.parametrize("page", pages_of_the_folder())
def test_pages_are_short_but_for_what_code_writes(page):
    """Somebody has to read them: about 250 lines, without what programs write."""
    text = (DOCS / page).read_text(encoding="utf-8")
    by_hand = re.sub(r"<!-- benchmark: .*?<!-- end -->", "", text, flags=re.DOTALL)

    assert page in PAGES or len(by_hand.splitlines()) <= 275
