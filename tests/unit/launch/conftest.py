"""What tests of readers share."""

import pytest

from autoplan.answers.configure.ask import read


@pytest.fixture
def reading(tmp_path):
    """Return what writes files into a folder, and reads the first of them."""

    def reads(files, **options):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return read(tmp_path / next(iter(files)), **options)

    return reads
