"""The replay engine's table: what is shipped can be read, and what is malformed is refused by name and place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specmodel_replay import convert, table
from specmodel_replay.table import Shape, TableError


def configuration(**changes: Any) -> dict[str, Any]:
    """Return the smallest table that is accepted, with changes."""
    level = {
        "concurrency": 1,
        "e2eMilliseconds": {"mean": 100, "p50": 100, "p90": 110, "p95": 115, "p99": 120},
        "ttftMilliseconds": {"mean": 20, "p50": 20, "p90": 21, "p95": 22, "p99": 23},
        "acceptance": {"perPosition": [0.8, 0.2]},
    }
    return {
        "format": table.FORMAT,
        "name": "mine",
        "tensorParallelSize": 1,
        "speculativeTokens": 2,
        "weights": "BF16",
        "inputTokens": 100,
        "outputTokens": 50,
        "levels": [level],
    } | changes


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_shipped_table_holds_the_ten_measured_shapes_at_five_levels_each() -> None:
    shipped = table.load()
    assert [(s.tensor_parallel_size, s.speculative_tokens, s.weights) for s in shipped.shapes()] == [
        (1, 0, "BF16"),
        (1, 0, "FP8"),
        (1, 3, "BF16"),
        (1, 3, "FP8"),
        (1, 5, "BF16"),
        (1, 5, "FP8"),
        (2, 0, "BF16"),
        (2, 0, "FP8"),
        (2, 3, "BF16"),
        (2, 3, "FP8"),
    ]
    for held in shipped.configurations.values():
        assert [level.concurrency for level in held.levels] == [1, 4, 8, 16, 32]
        assert all(len(level.acceptance) == held.shape.speculative_tokens for level in held.levels)


def test_a_file_may_hold_one_configuration_or_a_list_of_them(tmp_path: Path) -> None:
    one = table.load(write(tmp_path / "one.json", configuration()))
    two = table.load(write(tmp_path / "two.json", [configuration(), configuration(weights="FP8")]))
    assert (len(one.shapes()), len(two.shapes())) == (1, 2)
    assert one.name == "one"


def test_a_number_of_requests_that_is_not_given_is_that_of_the_usual_cell(tmp_path: Path) -> None:
    (held,) = table.load(write(tmp_path / "one.json", configuration())).configurations.values()
    assert held.levels[0].requests == 12


def broken_level(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = configuration()
    change(content["levels"][0])
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (configuration(format="v0"), "format is 'v0'"),
        (configuration(weights="INT4"), "write one of BF16, FP8"),
        (configuration(tensorParallelSize=0), "tensorParallelSize must be a whole number of at least 1"),
        (configuration(levels=[]), "levels must be a list with at least one element"),
        (configuration(outputTokens=1), "outputTokens must be a whole number of at least 2"),
        (broken_level(lambda x: x.pop("ttftMilliseconds")), r"levels\[0\]: ttftMilliseconds is missing"),
        (
            broken_level(lambda x: x["e2eMilliseconds"].update(p95=105)),
            r"e2eMilliseconds: the percentiles .* must not fall",
        ),
        (broken_level(lambda x: x["e2eMilliseconds"].update(mean="fast")), "mean must be a number of milliseconds"),
        (broken_level(lambda x: x["acceptance"].update(perPosition=[0.8])), "list of 2 fractions"),
        (broken_level(lambda x: x["acceptance"].update(perPosition=[0.2, 0.8])), "perPosition rises"),
        (broken_level(lambda x: x["acceptance"].update(perPosition=[80, 20])), "fractions from 0 to 1"),
        (
            broken_level(lambda x: x["ttftMilliseconds"].update(p50=100, p90=100, p95=100, p99=100)),
            "is not below the median",
        ),
        (configuration(levels=[*configuration()["levels"], *configuration()["levels"]]), "must ascend in concurrency"),
        ([configuration(), configuration()], "occurs twice"),
        ("text", "expected a JSON object, found str"),
    ],
)
def test_a_malformed_table_is_refused_with_place_and_remedy(tmp_path: Path, content: Any, message: str) -> None:
    path = write(tmp_path / "bad.json", content)
    with pytest.raises(TableError, match=message) as caught:
        table.load(path)
    assert str(path) in str(caught.value)


def test_a_table_that_is_not_there_or_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no such file or folder"):
        table.load(tmp_path / "none")
    with pytest.raises(TableError, match=r"holds no \.json file"):
        table.load(tmp_path)
    (tmp_path / "x.json").write_text("{", encoding="utf-8")
    with pytest.raises(TableError, match="not readable as JSON"):
        table.load(tmp_path)


def test_results_of_the_benchmark_become_a_table_that_can_be_loaded(tmp_path: Path) -> None:
    result: dict[str, Any] = {
        "max_concurrency": 4, "completed": 24, "failed": 0, "duration": 5.0, "request_throughput": 4.8,
        "total_input_tokens": 24 * 1024, "total_output_tokens": 24 * 256,
    }  # fmt: skip
    for name, base in (("e2el", 900), ("ttft", 80), ("tpot", 3), ("itl", 3)):
        result |= {f"{statistic}_{name}_ms": base for statistic in ("mean", "std", "p50", "p90", "p95", "p99")}
    shape = Shape(tensor_parallel_size=1, speculative_tokens=0, weights="BF16")
    made = convert.table_from_results([result], shape, "mine", {})
    assert table.load(write(tmp_path / "made.json", made)).configurations[shape].output_tokens == 256
    with pytest.raises(TableError, match="failed requests"):
        convert.table_from_results([result | {"failed": 1}], shape, "mine", {})
    with pytest.raises(TableError, match="lacks 'p99_e2el_ms'"):
        convert.table_from_results([result | {"p99_e2el_ms": None}], shape, "mine", {})
