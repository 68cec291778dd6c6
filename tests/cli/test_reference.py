"""``docs/cli.md`` says what the program does."""

from pathlib import Path

from docs.generate_cli import main, reference

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_the_page_is_what_the_commands_say():
    """Whoever changes a command runs `make docs`."""
    assert PAGE.read_text(encoding="utf-8") == reference()


def test_the_page_goes_to_the_file_that_is_named(tmp_path):
    """`make docs` writes the page."""
    main([str(tmp_path / "cli.md")])

    assert (tmp_path / "cli.md").read_text(encoding="utf-8") == reference()


def test_the_page_has_every_command_and_option():
    """Nothing that the help page lists is missing."""
    page = reference()

    for text in ("## autoplan plan", "## autoplan catalog check", "`--output, -o FILE`", "--all"):
        assert text in page
