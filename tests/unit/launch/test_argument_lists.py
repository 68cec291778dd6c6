"""The lists of arguments: how they are read from wheels, and that shipped ones agree with the wheels."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from autoplan.catalog.entries import load_entry
from autoplan.errors import UnsupportedError
from autoplan.launch.engines.arguments.engine_settings import argument_list, listed_versions
from benchmarks.serving.tabulating.tabulate_arguments import tabulated, written

WHEELS = os.environ.get("AUTOPLAN_ENGINE_WHEELS")
SHIPPED = Path(__file__).parents[3] / "specs" / "interfaces"
CONFIG = """
from typing import Literal
CacheDType = Literal["auto", "fp8"]
class CacheConfig:
    cache_dtype: CacheDType = "auto"
    share: float = Field(default={share}, gt=0)
class Parallel:
    size: int = 1
    experts: bool = False
"""
ARGUMENTS = """
class EngineArgs:
    def add_cli_args(parser):
        cache_kwargs = get_kwargs(CacheConfig)
        parallel_kwargs = get_kwargs(Parallel)
        group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        group.add_argument("--gpu-memory-utilization", **cache_kwargs["share"])
        group.add_argument("--tensor-parallel-size", "-tp", **parallel_kwargs["size"])
        group.add_argument("--enable-expert-parallel", **parallel_kwargs["experts"])
        group.add_argument("--max-num-seqs", **{**parallel_kwargs["size"], "default": None})
        group.add_argument("--headless", action="store_true", default=False)
"""
FIELDS = """
class Parallel:
    tp_size: A[int, Arg(help="x", aliases=["--tensor-parallel-size"])] = 1
    kv_cache_dtype: A[str, Arg(help="x", choices=["auto", "fp8_e4m3"])] = "auto"
    enable_mixed: A[bool, "x"] = False
    hidden: A[int, Arg(help="x", no_cli=True)] = 3
    plain: int = 2
"""


def wheel(folder, name, version, modules):
    """Write an archive with modules, as a wheel has them."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for module, text in modules.items():
            archive.writestr(module, text)
    return path


def rows(table):
    """Return the rows of a table by flag and first version."""
    return {(row["flag"], row["first"]): row for row in table["arguments"]}


def test_arguments_of_vllm_are_read_from_syntax_trees(tmp_path):
    """Types, defaults, choices and other spellings are those of the classes; a change begins a new row."""
    wheels = [
        wheel(
            tmp_path,
            "vllm",
            version,
            {
                "vllm/config/cache.py": CONFIG.format(share=share),
                "vllm/engine/arg_utils.py": ARGUMENTS + "import what_does_not_exist\n",
                "vllm/engine/other.py": "group.add_argument('--no-argument')",
            },
        )
        for version, share in (("0.10.0", 0.92), ("0.9.0", 0.9))
    ]
    table = tabulated("vllm", wheels)
    known = rows(table)

    assert table["versions"] == ["0.9.0", "0.10.0"]
    assert known["--kv-cache-dtype", "0.9.0"]["choices"] == ["auto", "fp8"]
    assert known["--gpu-memory-utilization", "0.9.0"]["default"] == 0.9
    assert known["--gpu-memory-utilization", "0.10.0"]["default"] == 0.92
    assert known["--tensor-parallel-size", "0.9.0"]["aliases"] == ["-tp"]
    assert known["--tensor-parallel-size", "0.9.0"]["last"] == "0.10.0"
    assert known["--enable-expert-parallel", "0.9.0"]["type"] == "bool"
    assert known["--max-num-seqs", "0.9.0"]["default"] is None
    assert known["--headless", "0.9.0"]["type"] == "flag"
    assert not any(flag == "--no-argument" for flag, _ in known)
    assert json.loads(written(table, "x"))["arguments"] == table["arguments"]


def test_arguments_of_sglang_are_its_annotated_fields(tmp_path):
    """Fields with help are arguments; those that are hidden or have none are not."""
    path = wheel(tmp_path, "sglang", "0.5.20", {"sglang/srt/arg_groups/fields/parallel.py": FIELDS})
    known = rows(tabulated("sglang", [path]))

    assert {flag for flag, _ in known} == {"--tp-size", "--kv-cache-dtype", "--enable-mixed"}
    assert known["--tp-size", "0.5.20"]["aliases"] == ["--tensor-parallel-size"]
    assert known["--enable-mixed", "0.5.20"]["type"] == "flag"


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_version_of_the_cost_model_is_listed(name):
    """Whatever version of an engine can be planned for can be emitted."""
    assert listed_versions(name) == tuple(load_entry("engine", name).versions)


def test_listed_arguments_agree_with_what_is_priced():
    """The default share of memory of the list is the one that the cost model of the version has."""
    from autoplan.schema.serving.engine_stack import engine_at

    spec = load_entry("engine", "vllm")
    for version in listed_versions("vllm"):
        listed = argument_list("vllm", version).arguments["--gpu-memory-utilization"].default
        assert listed == engine_at(spec, version).facts.budget.utilization.value


def test_other_versions_are_refused():
    """The known versions are named."""
    with pytest.raises(UnsupportedError, match=r"known versions are 0\.11, 0\.12"):
        argument_list("vllm", "0.13")


@pytest.mark.skipif(not WHEELS, reason="AUTOPLAN_ENGINE_WHEELS names no folder of wheels")
@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_shipped_lists_are_those_of_the_wheels(name):
    """Reading the wheels gives the shipped list."""
    wheels = sorted(Path(WHEELS).glob(f"{name}-*/*.whl"))
    table = tabulated(name, wheels)
    shipped = json.loads((SHIPPED / f"{name}.json").read_text(encoding="utf-8"))

    assert table["versions"] == shipped["versions"]
    assert table["arguments"] == shipped["arguments"]
