"""``python -m docs.generate_reference`` writes every page that comes from the code, ``docs/cli.md`` too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from autoplan.commands.output import write
from autoplan.schema.grid_spec import GridSpec
from autoplan.schema.hardware import ClusterSpec, DeviceSpec, NodeSpec
from autoplan.schema.job import JobSpec
from autoplan.schema.model import ModelSpec
from autoplan.schema.run_files import RunsSpec
from autoplan.schema.serving.serving_spec import ServingSpec
from docs import generate_cli
from docs.book.catalogue_lists import catalogue_page
from docs.book.documents import documents_page
from docs.book.file_keys import keys_table
from docs.book.layout_keys import layout_page
from docs.book.python_api import python_page

__all__ = ["FOLDER", "PAGES", "main"]

FOLDER: Final = Path(__file__).parent

_WRITTEN: Final = (
    "Written by `make docs` from the schema that reads the file. `[]` stands for each item of a list,"
    " `.NAME` for each key of a mapping; a quantity is text with its unit, and its range follows."
)
_MODEL: Final = {"ModelSpec": "keys of a [model](catalogue-files.md#model)"}


def training_job_page() -> str:
    """Return the page of the keys of a training job."""
    more = "[Jobs](../../specs/jobs/README.md) explains them with examples."
    return f"# Keys of a job\n\n{_WRITTEN} {more}\n\n{keys_table(JobSpec, elsewhere=_MODEL)}"


def serving_job_page() -> str:
    """Return the page of the keys of a serving job."""
    more = "[Serving jobs](../../specs/serving/README.md) explains them with examples."
    return f"# Keys of a serving job\n\n{_WRITTEN} {more}\n\n{keys_table(ServingSpec, elsewhere=_MODEL)}"


def catalogue_files_page() -> str:
    """Return the page of the keys of other files: models, hardware, grids and measured runs."""
    kinds = {
        "Model": ModelSpec,
        "Device": DeviceSpec,
        "Node": NodeSpec,
        "Cluster": ClusterSpec,
        "Grid": GridSpec,
        "Measured runs": RunsSpec,
    }
    parts = [f"## {name}\n\n{keys_table(kind, elsewhere=_MODEL)}" for name, kind in kinds.items()]
    readme = "[Cost models](../../costmodels/README.md) explains the files of stacks, kernels and engines."
    return f"# Keys of catalogue files\n\n{_WRITTEN} {readme}\n\n" + "\n".join(parts)


#: Every generated page, by its path below docs/.
PAGES: Final[dict[str, Callable[[], str]]] = {
    "cli.md": generate_cli.reference,
    "reference/python.md": python_page,
    "reference/training-job.md": training_job_page,
    "reference/serving-job.md": serving_job_page,
    "reference/catalogue-files.md": catalogue_files_page,
    "reference/layout.md": layout_page,
    "reference/documents.md": documents_page,
    "reference/catalogue.md": catalogue_page,
}


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (FOLDER / name).parent.mkdir(exist_ok=True)
        write(f"{page().rstrip()}\n", FOLDER / name)


if __name__ == "__main__":
    main()
