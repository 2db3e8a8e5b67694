"""Column mapping: expressions, presets, resolution, and values on every Arrow layout."""

from __future__ import annotations

import datetime
import decimal
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy
import polars
import pyarrow
import pyarrow.parquet
import pytest

from vtaudit.errors import InputError, SchemaError, SettingsError
from vtaudit.mapping import (
    Mapping,
    available,
    column_paths,
    expression_type,
    list_presets,
    load_preset,
    map_table,
    needed_columns,
    parse_assignment,
    parse_expression,
    resolve_mapping,
)

CANONICAL = (
    *("trajectory_id", "step", "unroll_id", "reward", "terminated", "truncated"),
    *("behavior_log_prob", "target_log_prob", "value", "bootstrap_value", "discount", "action"),
    *("behavior_action_mask", "target_action_mask", "behavior_logits", "target_logits"),
    *("behavior_temperature", "behavior_epsilon", "policy_version", "valid", "actor_id"),
    *("env_version", "reward_version", "mask_version", "collected_at", "received_at"),
)
REAL_LOGS = Path(__file__).parents[2] / "shared" / "real_logs"
needs_real_logs = pytest.mark.skipif(
    not REAL_LOGS.is_dir(), reason="shared/real_logs is not beside the repository"
)
LISTS = [[1.0, 2.0], None, [3.0, None], [4.0, 5.0]]
WEIRD_NAMES = (
    'say "hi"',
    "naïve_récompense",
    "報酬",
    "a,b",
    "f(x)",
    "x; DROP TABLE y --",
    "a'b",
    " ",
)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def mapping_of(**texts: str) -> Mapping:
    return Mapping({name: parse_expression(text) for name, text in texts.items()})


def evaluate(text: str, **columns: object) -> list[object]:
    table = pyarrow.table(columns)
    frame = map_table(table, mapping_of(out=text))
    assert frame.columns == ["out"]
    return frame["out"].to_list()


def type_of(text: str, schema: pyarrow.Schema) -> pyarrow.DataType:
    return expression_type(parse_expression(text), schema)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("reward", ("reward",)),
        ("  reward  ", ("reward",)),
        ("my reward", ("my reward",)),
        ("metrics.reward", ("metrics.reward",)),
        ('"next.done"', ('"next.done"',)),
        ('a."b.c".d', ('a."b.c".d',)),
        ("log( pick(probs , action) )", ("probs", "action")),
        ("key(a,b,a)", ("a", "b")),
        ("lit(a)", ()),
        ("log", ("log",)),
        ("true", ("true",)),
        ("x-1+2", ("x-1+2",)),
    ],
)
def test_columns_as_written(text: str, columns: tuple[str, ...]) -> None:
    expression = parse_expression(text)
    assert expression.columns() == columns
    assert expression.text == text.strip()
    assert pickle.loads(pickle.dumps(expression)) == expression


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("character 1", "expected a column or a function", "found the end")),
        ("log()", ("character 5", "expected a column or a function", "found ')'")),
        ("log(x", ("character 6", 'expected "," or ")"', "found the end")),
        ("log(x))", ("character 7", "expected the end", "found ')'")),
        ("a,b", ("character 2", "expected the end", "found ','", "double quotes")),
        ("log(a,b)", ("character 8", "log(x)", "not 2 of them")),
        ("pick(a)", ("character 7", "pick(list,index)", "not 1 of them")),
        ("pick(a,,b)", ("character 8", "expected a column or a function", "found ','")),
        ("neg(logg(x))", ("character 5", "'logg'", "did you mean log", "valid: key, lit, log")),
        ("reward (usd)", ("character 1", "expected a function, found 'reward'", "double quotes")),
        ("lit()", ("character 5", "a number, true, false, null or text")),
        ("lit(a,b)", ("character 6", 'expected ")"')),
        ("lit(1", ("character 6", 'expected ")"', "the end")),
        ("lit(9223372036854775808)", ("character 5", "an integer of 64 bits")),
        ('"open', ("character 1", "expected a closing quote")),
        ('"a"b', ("character 4", "expected the end", "found 'b'")),
        ('a"b"', ("character 2", "expected the end")),
        ("neg(" * 60 + "x" + ")" * 60, ("character 201", "at most 50 nested functions")),
    ],
)
def test_syntax_error_names_position_and_expectation(text: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError) as error:
        parse_expression(text)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_assignment_splits_at_the_first_equals_sign() -> None:
    assert parse_assignment("reward=rewards") == ("reward", "rewards")
    assert parse_assignment(" reward = a=b ") == ("reward", "a=b")
    for text in ("reward", "reward=", "=rewards", ""):
        with pytest.raises(SettingsError, match="expected canonical=expression"):
            parse_assignment(text)


def test_parsing_loads_neither_polars_nor_pyarrow() -> None:
    code = (
        "import sys; from vtaudit.mapping import parse_expression, load_preset;"
        "parse_expression('log(x)'); load_preset('rllib');"
        "print(sorted({'polars', 'pyarrow', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_log_is_natural_and_keeps_null() -> None:
    values = evaluate("log(p)", p=[1.0, math.e, 0.0, -1.0, None, math.nan, math.inf])
    assert values[:3] == [0.0, 1.0, -math.inf]
    assert math.isnan(values[3])
    assert values[4] is None
    assert math.isnan(values[5])
    assert values[6] == math.inf


@pytest.mark.parametrize(
    "type_", [pyarrow.float32(), pyarrow.int64(), pyarrow.uint8(), pyarrow.decimal128(21, 2)]
)
def test_log_is_float64_whatever_it_takes(type_: pyarrow.DataType) -> None:
    table = pyarrow.table({"p": pyarrow.array([1, 2, None]).cast(type_)})
    values = map_table(table, mapping_of(out="log(p)"))["out"]
    assert values.dtype == polars.Float64
    assert values.to_list() == [0.0, pytest.approx(math.log(2), abs=1e-15), None]


def test_neg_never_overflows() -> None:
    assert evaluate("neg(x)", x=[1.5, -0.0, None, math.inf]) == [-1.5, 0.0, None, -math.inf]
    assert evaluate("neg(x)", x=pyarrow.array([200, None], pyarrow.uint8())) == [-200.0, None]
    assert evaluate("neg(x)", x=pyarrow.array([-128], pyarrow.int8())) == [128.0]
    assert evaluate("neg(x)", x=pyarrow.array([2**64 - 1], pyarrow.uint64())) == [-float(2**64)]


def test_not_keeps_invalid_flags_detectable() -> None:
    assert evaluate("not(x)", x=[True, False, None]) == [False, True, None]
    assert evaluate("not(x)", x=[0, 1, 2, -1, None]) == [1, 0, 2, -1, None]
    unsigned = pyarrow.array([0, 1, 255, None], pyarrow.uint8())
    assert evaluate("not(x)", x=unsigned) == [1, 0, 255, None]
    values = evaluate("not(x)", x=[0.0, 1.0, 0.5, math.nan, None])
    assert values[:3] == [1.0, 0.0, 0.5]
    assert math.isnan(values[3])
    assert values[4] is None
    assert evaluate("not(x)", x=pyarrow.nulls(2)) == [None, None]
    decimals = pyarrow.array([decimal.Decimal("0"), decimal.Decimal("0.25")])
    assert evaluate("not(x)", x=decimals) == [1, 0.25]


def test_notnull_counts_nan_as_a_value() -> None:
    assert evaluate("notnull(x)", x=[1.0, None, math.nan]) == [True, False, True]
    assert evaluate("notnull(x)", x=[[None], None, []]) == [True, False, True]
    assert evaluate("notnull(x)", x=[{"a": None}, None]) == [True, False]
    assert evaluate("notnull(x)", x=pyarrow.nulls(2)) == [False, False]


@pytest.mark.parametrize(
    ("text", "value", "dtype"),
    [
        ("lit(3)", 3, polars.Int64),
        ("lit(-9223372036854775808)", -(2**63), polars.Int64),
        ("lit( 0.5 )", 0.5, polars.Float64),
        ("lit(1e-3)", 0.001, polars.Float64),
        ("lit(-inf)", -math.inf, polars.Float64),
        ("lit(true)", True, polars.Boolean),
        ("lit(false)", False, polars.Boolean),
        ("lit(null)", None, polars.Null),
        ("lit(v3 beta)", "v3 beta", polars.String),
        ('lit("3")', "3", polars.String),
        ('lit("a ""b"", (c)")', 'a "b", (c)', polars.String),
        ('lit("")', "", polars.String),
        ("lit(1.2.3)", "1.2.3", polars.String),
    ],
)
def test_lit_repeats_its_value(text: str, value: object, dtype: polars.DataType) -> None:
    frame = map_table(pyarrow.table({"x": [1, 2]}), mapping_of(out=text))
    assert frame["out"].to_list() == [value, value]
    assert frame["out"].dtype == dtype
    assert type(frame["out"][0]) is type(value)


def test_pick_is_null_where_there_is_no_such_element() -> None:
    lists = [[1.0, 2.0]] * 6 + [None, [], [None, 7.0]]
    index = [0, 1, 2, -1, None, 2**40, 0, 0, 0]
    expected = [1.0, 2.0, None, None, None, None, None, None, None]
    assert evaluate("pick(l,i)", l=lists, i=index) == expected
    assert evaluate("pick(l,lit(1))", l=[[1, 2], [3]]) == [2, None]
    assert evaluate("pick(l,i)", l=pyarrow.nulls(2), i=[0, 1]) == [None, None]
    assert evaluate("pick(l,i)", l=[[1], [2]], i=pyarrow.nulls(2)) == [None, None]
    assert evaluate("pick(l,i)", l=[[None], [None]], i=[0, 1]) == [None, None]


def test_pick_takes_an_integral_float_index_only() -> None:
    index = [1.0, 0.5, math.nan, math.inf, 1e300, -1.0, None, -0.0]
    expected = [2, None, None, None, None, None, None, 1]
    assert evaluate("pick(l,i)", l=[[1, 2]] * 8, i=index) == expected
    huge = pyarrow.array([1, 2**64 - 1], pyarrow.uint64())
    assert evaluate("pick(l,i)", l=[[1, 2]] * 2, i=huge) == [2, None]


def test_pick_and_log_nest() -> None:
    nested = [[[0.5, 1.0], [0.25]], [[1.0]]]
    values = evaluate("neg(log(pick(pick(p,i),lit(0))))", p=nested, i=[1, 0])
    assert values == [pytest.approx(math.log(4), abs=1e-15), 0.0]


def test_key_joins_parts_naturally() -> None:
    assert evaluate("key(a,e)", a=[3, None, 5], e=[7, 1, None]) == ["3/7", None, None]
    assert evaluate("key(a)", a=["x"]) == ["x"]
    assert evaluate("key(a,b)", a=[True], b=["ü"]) == ["true/ü"]
    assert evaluate("key(a,b)", a=pyarrow.nulls(1), b=["x"]) == [None]
    assert evaluate("key(lit(run 1),m.id)", m=[{"id": 4}]) == ["run 1/4"]
    assert evaluate("key(a)", a=[b"\xff/"]) == ["ff2f"]
    when = datetime.datetime(2024, 1, 2, 3, 4, 5, 6)
    assert evaluate("key(a)", a=[when]) == ["2024-01-02 03:04:05.000006"]


def test_key_is_injective() -> None:
    pieces = ["", "/", "\\", "\\/", "/\\", "a/", "/a", "a", "\\\\", "//"]
    pairs = [(first, second) for first in pieces for second in pieces]
    keys = evaluate("key(a,b)", a=[pair[0] for pair in pairs], b=[pair[1] for pair in pairs])
    assert len(set(keys)) == len(pairs)
    nested = evaluate("key(key(a,b),b)", a=[pair[0] for pair in pairs], b=[p[1] for p in pairs])
    assert len(set(nested)) == len(pairs)


def test_key_is_the_same_for_equal_numbers_of_any_type() -> None:
    numbers = [3.0, 0.5, -0.0, 1e300, math.nan, None, 2.0**53, -math.inf]
    expected = ["3", "0.5", "0", "1e+300", None, None, "9007199254740992", "-inf"]
    assert evaluate("key(x)", x=numbers) == expected
    assert evaluate("key(x)", x=pyarrow.array([3.0], pyarrow.float32())) == ["3"]
    assert evaluate("key(x)", x=pyarrow.array([2**64 - 1], pyarrow.uint64())) == [str(2**64 - 1)]


@pytest.mark.parametrize(
    ("text", "values", "parts"),
    [
        ("log(x)", ["a"], ("log(x): log takes numbers", "found x of type String")),
        ("log(x)", [True], ("takes numbers", "Boolean")),
        ("neg(x)", [[1.0]], ("takes numbers", "List(Float64)")),
        ("not(x)", ["false"], ("takes booleans or numbers", "String")),
        ("pick(x,lit(0))", [1], ("takes lists here, found x of type Int64",)),
        ("pick(x,lit(a))", [[1]], ("takes numbers here, found lit(a) of type String",)),
        ("key(lit(1),lit(2),x)", [[1]], ("numbers, text, booleans or times", "List(Int64)")),
        ("neg(log(x))", ["a"], ("log(x): log takes numbers",)),
    ],
)
def test_wrong_type_names_the_argument(text: str, values: list[object], parts: object) -> None:
    table = pyarrow.table({"x": values})
    with pytest.raises(SchemaError) as error:
        map_table(table, mapping_of(out=text))
    assert all(part in str(error.value) for part in parts), str(error.value)
    with pytest.raises(SchemaError):
        type_of(text, table.schema)


def test_struct_path_keeps_null_of_the_outer_struct() -> None:
    metrics = [{"reward": 1.0, "deep": {"x": 1}}, None, {"reward": None, "deep": None}]
    assert evaluate("metrics.reward", metrics=metrics) == [1.0, None, None]
    assert evaluate("metrics.deep.x", metrics=metrics) == [1, None, None]
    assert evaluate('"metrics".reward', metrics=metrics) == [1.0, None, None]


def test_literal_dotted_name_goes_before_the_struct_path() -> None:
    both = {"a.b": [1], "a": [{"b": 2}]}
    assert evaluate("a.b", **both) == [1]
    assert evaluate('a."b"', **both) == [2]
    assert evaluate('"a.b"', **both) == [1]
    assert evaluate("a.b", a=[{"b": 2}]) == [2]
    assert evaluate("not(next.done)", **{"next.done": [True]}) == [False]
    assert evaluate('a."b.c"', a=[{"b.c": 3}]) == [3]
    assert not available(parse_expression('"a.b"'), pyarrow.table({"a": [{"b": 2}]}).schema)


@pytest.mark.parametrize("name", WEIRD_NAMES)
def test_weird_column_names(name: str) -> None:
    table = pyarrow.table({name: [0.5], "other": [1]})
    for columns in (column_paths(table.schema), table.schema.names):
        mapping = resolve_mapping({"reward": quoted(name)}, None, CANONICAL, columns)
    assert needed_columns(mapping, table.schema) == [name]
    assert map_table(table, mapping).to_dict(as_series=False) == {"reward": [0.5]}


@pytest.mark.parametrize("name", ["naïve_récompense", "報酬", "x; DROP TABLE y --", "a'b", "a=b"])
def test_weird_column_names_without_quotes(name: str) -> None:
    assert evaluate(parse_assignment(f"reward={name}")[1], **{name: [0.5]}) == [0.5]


def test_map_table_from_a_parquet_file(tmp_path: Path) -> None:
    table = pyarrow.table(
        {
            "x": pyarrow.array(LISTS, pyarrow.list_view(pyarrow.float64())),
            "d": pyarrow.array(["a", None, "b", "a"]).dictionary_encode(),
            "t": pyarrow.array([1, 2, None, 4], pyarrow.timestamp("ns")),
        }
    )
    for int96 in (False, True):
        path = tmp_path / f"{int96}.parquet"
        pyarrow.parquet.write_table(table, path, use_deprecated_int96_timestamps=int96)
        file = pyarrow.parquet.ParquetFile(path)
        mapping = mapping_of(x="x", d="d", t="t")
        for batch in file.iter_batches(columns=needed_columns(mapping, file.schema_arrow)):
            frame = map_table(batch, mapping)
            assert frame["x"].to_list() == LISTS
            assert frame["d"].to_list() == ["a", None, "b", "a"]
            assert frame["t"].cast(polars.Int64).to_list() == [1, 2, None, 4]


def test_struct_siblings_are_never_converted() -> None:
    row = {"reward": 1.0, "gap": pyarrow.MonthDayNano([1, 2, 3])}
    type_ = pyarrow.struct(
        [("reward", pyarrow.float64()), ("gap", pyarrow.month_day_nano_interval())]
    )
    assert evaluate("m.reward", m=pyarrow.array([row], type_)) == [1.0]
    with pytest.raises(SchemaError, match=r"column m\.gap: type month_day_nano_interval"):
        evaluate("m.gap", m=pyarrow.array([row], type_))


LIST_TYPES = [
    pyarrow.list_(pyarrow.float64()),
    pyarrow.large_list(pyarrow.float64()),
    pyarrow.list_(pyarrow.float64(), 2),
    pyarrow.list_view(pyarrow.float64()),
    pyarrow.large_list_view(pyarrow.float64()),
    pyarrow.list_(pyarrow.field("element", pyarrow.float64(), metadata={"k": "v"})),
]


@pytest.mark.parametrize("type_", LIST_TYPES, ids=str)
@pytest.mark.parametrize("start", [0, 1, 3])
def test_every_list_layout_is_a_list(type_: pyarrow.DataType, start: int) -> None:
    column = pyarrow.array(LISTS, type_)
    chunked = pyarrow.chunked_array([column.slice(start), column.slice(1, 2)])
    table = pyarrow.table({"x": chunked})
    values = map_table(table, mapping_of(out="x", first="pick(x,lit(0))"))
    expected = LISTS[start:] + LISTS[1:3]
    assert values["out"].to_list() == expected
    assert values["out"].dtype == polars.List(polars.Float64)
    assert values["first"].to_list() == [item[0] if item else None for item in expected]
    assert type_of("x", table.schema) == pyarrow.list_(pyarrow.float64())
    batch = pyarrow.record_batch({"x": column.slice(start)})
    assert map_table(batch, mapping_of(out="x"))["out"].to_list() == LISTS[start:]


def test_list_views_that_overlap_and_nulls_with_content() -> None:
    values = pyarrow.array([1.0, 2.0, 3.0])
    offsets, sizes = pyarrow.array([2, 0, 1], "int32"), pyarrow.array([1, 2, 2], "int32")
    views = pyarrow.ListViewArray.from_arrays(offsets, sizes, values)
    assert evaluate("x", x=views) == [[3.0], [1.0, 2.0], [2.0, 3.0]]
    hidden = pyarrow.ListArray.from_arrays(
        pyarrow.array([0, 2, 3], "int32"), values, mask=pyarrow.array([True, False])
    )
    assert evaluate("x", x=hidden) == [None, [3.0]]


def test_nested_layouts() -> None:
    inner = pyarrow.struct([("p", pyarrow.list_view(pyarrow.float32()))])
    rows = [[{"p": [1.0]}, None], None, [{"p": None}]]
    assert evaluate("x", x=pyarrow.array(rows, pyarrow.large_list_view(inner))) == rows
    tensor = pyarrow.fixed_shape_tensor(pyarrow.float64(), (2,))
    storage = pyarrow.array([[1.0, 2.0], None], pyarrow.list_(pyarrow.float64(), 2))
    tensors = pyarrow.ExtensionArray.from_storage(tensor, storage)
    assert evaluate("x", x=tensors) == [[1.0, 2.0], None]
    assert evaluate("x", x=pyarrow.ListArray.from_arrays([0, 2], tensors)) == [[[1.0, 2.0], None]]


@pytest.mark.parametrize(
    ("array", "values", "type_"),
    [
        (pyarrow.array(["a", None]).dictionary_encode(), ["a", None], pyarrow.string()),
        (pyarrow.array([7, None]).dictionary_encode(), [7, None], pyarrow.int64()),
        (pyarrow.array(["a"], pyarrow.large_string()), ["a"], pyarrow.string()),
        (pyarrow.array(["a"], pyarrow.string_view()), ["a"], pyarrow.string()),
        (pyarrow.array([b"a"], pyarrow.binary_view()), [b"a"], pyarrow.binary()),
        (pyarrow.array([b"a"], pyarrow.binary(1)), [b"a"], pyarrow.binary()),
        (pyarrow.array(["{}"], pyarrow.json_()), ["{}"], pyarrow.string()),
        (pyarrow.array([0.5], pyarrow.float16()), [0.5], pyarrow.float32()),
        (pyarrow.array([1], pyarrow.decimal256(50, 0)), [1.0], pyarrow.float64()),
        (pyarrow.nulls(1), [None], pyarrow.null()),
        (
            pyarrow.array([0], pyarrow.timestamp("ns", "+02:00")),
            [datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)],
            pyarrow.timestamp("ns", "UTC"),
        ),
    ],
)
def test_encodings_become_plain(
    array: pyarrow.Array, values: list[object], type_: pyarrow.DataType
) -> None:
    table = pyarrow.table({"x": array})
    assert map_table(table, mapping_of(out="x"))["out"].to_list() == values
    assert type_of("x", table.schema) == type_


def test_unknown_extension_metadata_is_dropped() -> None:
    metadata = {"ARROW:extension:name": "ray.data.arrow_tensor", "ARROW:extension:metadata": "[2]"}
    field = pyarrow.field("x", pyarrow.list_(pyarrow.float64()), metadata=metadata)
    table = pyarrow.table([pyarrow.array([[1.0]])], schema=pyarrow.schema([field]))
    assert map_table(table, mapping_of(out="x"))["out"].dtype == polars.List(polars.Float64)


@pytest.mark.parametrize(
    "type_", [pyarrow.map_(pyarrow.string(), pyarrow.int8()), pyarrow.struct([])]
)
def test_types_that_cannot_be_mapped_are_named(type_: pyarrow.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column x: type .* cannot be mapped"):
        evaluate("x", x=pyarrow.array([None], type_))


def test_text_that_is_no_utf8_is_an_input_error() -> None:
    buffers = pyarrow.array([b"ok", b"\xff\xfe"]).buffers()
    text = pyarrow.StringArray.from_buffers(2, buffers[1], buffers[2])
    lists = pyarrow.ListArray.from_arrays([0, 2], text)
    codes = pyarrow.DictionaryArray.from_arrays(pyarrow.array([1]), text)
    for column in (text, lists, codes):
        with pytest.raises(InputError, match=r"column x: Invalid UTF8"):
            evaluate("x", x=column)


def test_column_that_a_file_holds_twice_is_refused() -> None:
    schema = pyarrow.schema([("a", pyarrow.int8()), ("a", pyarrow.int8())])
    with pytest.raises(SchemaError, match="a 2 times"):
        available(parse_expression("a"), schema)


def test_empty_batches_keep_types() -> None:
    schema = pyarrow.schema(
        [("p", LIST_TYPES[3]), ("i", pyarrow.int64()), ("d", pyarrow.dictionary("int32", "string"))]
    )
    mapping = mapping_of(a="log(pick(p,i))", b="d", c="lit(1)", d="key(d,i)")
    empty = pyarrow.table(
        {name: pyarrow.chunked_array([], schema.field(name).type) for name in schema.names}
    )
    for table in (schema.empty_table(), empty):
        frame = map_table(table, mapping)
        assert frame.shape == (0, 4)
        assert frame.dtypes == [polars.Float64, polars.String, polars.Int64, polars.String]


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("x", pyarrow.float32()),
        ("log(x)", pyarrow.float64()),
        ("neg(x)", pyarrow.float32()),
        ("not(b)", pyarrow.bool_()),
        ("not(i)", pyarrow.int16()),
        ("notnull(x)", pyarrow.bool_()),
        ("key(x,i)", pyarrow.string()),
        ("pick(l,i)", pyarrow.string()),
        ("l", pyarrow.list_(pyarrow.string())),
        ("s", pyarrow.struct([("f", pyarrow.string())])),
        ("s.f", pyarrow.string()),
        ("lit(null)", pyarrow.null()),
    ],
)
def test_expression_type_is_that_of_the_values(text: str, type_: pyarrow.DataType) -> None:
    schema = pyarrow.schema(
        {
            "x": pyarrow.float32(),
            "b": pyarrow.bool_(),
            "i": pyarrow.int16(),
            "l": pyarrow.large_list(pyarrow.string_view()),
            "s": pyarrow.struct([("f", pyarrow.large_string())]),
        }
    )
    assert type_of(text, schema) == type_


def test_expression_type_of_a_missing_column_is_an_error() -> None:
    with pytest.raises(SchemaError, match="lacks one of"):
        type_of("log(y)", pyarrow.schema([("x", pyarrow.float32())]))


def test_available_and_needed_columns() -> None:
    table = pyarrow.table({"z": [1], "p": [[0.5]], "a": [0], "m": [{"r": 1.0}], "huge": ["x"]})
    mapping = mapping_of(
        action="a",
        behavior_log_prob="log(pick(p,a))",
        reward="m.r",
        value="m.missing",
        valid="notnull(gone)",
        truncated="lit(false)",
        terminated="not(pick(huge,gone))",
    )
    has = {name for name, text in mapping.expressions.items() if available(text, table.schema)}
    assert has == {"action", "behavior_log_prob", "reward", "truncated"}
    assert needed_columns(mapping, table.schema) == ["p", "a", "m"]
    narrow = table.select(needed_columns(mapping, table.schema))
    frame = map_table(narrow, mapping)
    assert frame.columns == ["action", "behavior_log_prob", "reward", "truncated"]
    assert frame.equals(map_table(table, mapping))


def test_column_paths_lists_struct_fields() -> None:
    row = {"a": [{"b": {"c": 1}, "d": 2}], "e.f": [1], "l": [[{"x": 1}]]}
    expected = ["a", '"e.f"', "l", "a.b", "a.d", "a.b.c"]
    assert column_paths(pyarrow.table(row).schema) == expected


def test_explicit_map_goes_before_preset_and_identity() -> None:
    columns = ["eps_id", "rewards", "reward", "action_logp", "value", "mine"]
    resolved = resolve_mapping({"reward": "mine"}, load_preset("rllib"), CANONICAL, columns)
    texts = {name: expression.text for name, expression in resolved.expressions.items()}
    assert texts == {
        "trajectory_id": "eps_id",
        "reward": "mine",
        "truncated": "lit(false)",
        "behavior_log_prob": "action_logp",
        "value": "value",
    }
    assert list(texts) == [name for name in CANONICAL if name in texts]
    without = resolve_mapping({}, load_preset("rllib"), CANONICAL, columns)
    assert without.expressions["reward"].text == "rewards"
    identity = resolve_mapping({}, None, CANONICAL, columns)
    assert list(identity.expressions) == ["reward", "value"]


def test_map_to_unknown_canonical_name_lists_the_valid_ones() -> None:
    with pytest.raises(SettingsError, match=r"rewrd.*did you mean reward.*valid: .*trajectory_id"):
        resolve_mapping({"rewrd": "r"}, None, CANONICAL, ["r"])


def test_map_of_missing_column_names_near_matches() -> None:
    with pytest.raises(
        SchemaError, match=r"--map reward=log\(rewads\): no file has a column rewads"
    ):
        resolve_mapping({"reward": "log(rewads)"}, None, CANONICAL, ["rewards", "x"])
    with pytest.raises(SchemaError, match=r"did you mean metrics\.reward"):
        resolve_mapping({"reward": "metrics.rewar"}, None, CANONICAL, ["metrics", "metrics.reward"])
    with pytest.raises(SettingsError, match="expected a function"):
        resolve_mapping({"reward": "lg(x)"}, None, CANONICAL, ["x"])


def test_reference_resolves_only_to_what_a_file_can_have() -> None:
    struct = column_paths(pyarrow.table({"a": [{"b": 1}], "e": [1]}).schema)
    literal = column_paths(pyarrow.table({"a.b": [1]}).schema)
    for text, columns in (("a.b", struct), ("a.b", literal), ('"a.b"', literal), ('a."b"', struct)):
        assert resolve_mapping({"reward": text}, None, CANONICAL, columns).expressions
    assert resolve_mapping({"reward": '"a.b"'}, None, CANONICAL, ["a.b"]).expressions
    for text, columns in (('"a.b"', struct), ('a."b"', literal), ("e.b", struct), ("a.c", struct)):
        with pytest.raises(SchemaError, match="no file has a column"):
            resolve_mapping({"reward": text}, None, CANONICAL, columns)


@pytest.mark.parametrize("name", [*WEIRD_NAMES, "next.done", "", "a b", "x ", "plain"])
def test_column_paths_can_be_pasted_into_a_map(name: str) -> None:
    table = pyarrow.table({name: [{name: 1}]})
    outer, inner = column_paths(table.schema)
    assert resolve_mapping({"reward": outer}, None, CANONICAL, [outer]).expressions
    assert map_table(table, mapping_of(out=inner))["out"].to_list() == [1]


def test_explicit_lit_null_means_no_such_column() -> None:
    columns = ["action_dist_inputs", "valid"]
    maps = {"behavior_logits": "lit(null)", "valid": "lit( null )", "truncated": "lit(null)"}
    assert not resolve_mapping(maps, load_preset("rllib"), CANONICAL, columns).expressions


def test_preset_takes_the_first_alternative_that_exists() -> None:
    preset = load_preset("rllib")
    new = resolve_mapping(
        {}, preset, CANONICAL, ["dones", "terminateds", "truncateds", "action_prob"]
    )
    assert new.expressions["terminated"].text == "terminateds"
    assert new.expressions["truncated"].text == "truncateds"
    assert new.expressions["behavior_log_prob"].text == "log(action_prob)"
    old = resolve_mapping({}, preset, CANONICAL, ["dones"])
    assert old.expressions["terminated"].text == "dones"
    own = resolve_mapping({}, preset, CANONICAL, ["dones", "truncated"])
    assert own.expressions["truncated"].text == "truncated"


def test_presets_are_sound() -> None:
    names = ("coach", "d4rl", "minari", "reagent", "rllib", "torchrl", "vtaudit")
    assert list_presets() == names
    for name in list_presets():
        preset = load_preset(name)
        assert preset.name == name
        assert preset.description
        assert set(preset.columns) | set(preset.settings_without) <= set(CANONICAL)
        for texts in preset.columns.values():
            assert texts
            for text in texts:
                parse_expression(text)


def test_unknown_preset_lists_the_valid_ones() -> None:
    with pytest.raises(SettingsError, match=r"'rlib'.*did you mean rllib.*valid: coach, d4rl"):
        load_preset("rlib")


def test_preset_settings_depend_on_what_is_mapped() -> None:
    preset = load_preset("rllib")
    assert preset.settings_for(["reward"]) == {"step_from": "order"}
    assert preset.settings_for({"step": 1}) == {}
    assert load_preset("vtaudit").settings_for([]) == {}
    assert load_preset("vtaudit").columns == {}


@needs_real_logs
def test_coach_acrobot() -> None:
    table = pyarrow.parquet.read_table(REAL_LOGS / "coach_acrobot" / "coach_acrobot.parquet")
    maps = {
        "trajectory_id": "key(episode_name,episode_id)",
        "step": "transition_number",
        "behavior_log_prob": "log(pick(all_action_probabilities,action))",
        "valid": "notnull(action)",
    }
    mapping = resolve_mapping(maps, None, CANONICAL, column_paths(table.schema))
    needed = needed_columns(mapping, table.schema)
    assert not any(name.startswith("state_feature") for name in needed)
    frame = map_table(table.select(needed), mapping)
    rows = table.select(["all_action_probabilities", "action"]).to_pylist()
    picked = [
        math.nan if row["action"] is None else row["all_action_probabilities"][row["action"]]
        for row in rows
    ]
    expected = numpy.log(numpy.array(picked))
    found = frame["behavior_log_prob"].fill_null(math.nan).to_numpy()
    numpy.testing.assert_allclose(found, expected, rtol=1e-15, atol=0)
    assert frame["valid"].to_list() == [row["action"] is not None for row in rows]
    assert frame["trajectory_id"][0] == "acrobot/0"


@needs_real_logs
def test_reagent_cartpole() -> None:
    path = REAL_LOGS / "reagent_cartpole" / "reagent_cartpole_training.parquet"
    table = pyarrow.parquet.read_table(path)
    maps = {"behavior_log_prob": "log(propensity)", "reward": "metrics.reward"}
    mapping = resolve_mapping(maps, None, CANONICAL, column_paths(table.schema))
    assert needed_columns(mapping, table.schema) == ["action", "propensity", "metrics"]
    frame = map_table(table, mapping)
    assert frame["reward"].to_list() == table["reward"].to_pylist()
    expected = numpy.log(table["propensity"].to_numpy())
    numpy.testing.assert_allclose(frame["behavior_log_prob"].to_numpy(), expected, rtol=1e-15)


@needs_real_logs
def test_rllib_cartpole() -> None:
    paths = sorted((REAL_LOGS / "rllib_cartpole").glob("*.parquet"))
    schemas = [pyarrow.parquet.read_schema(path) for path in paths]
    columns = {name for schema in schemas for name in column_paths(schema)}
    preset = load_preset("rllib")
    mapping = resolve_mapping({}, preset, CANONICAL, columns)
    assert preset.settings_for(mapping.expressions) == {"step_from": "order"}
    for path, schema in zip(paths, schemas, strict=True):
        table = pyarrow.parquet.read_table(path, columns=needed_columns(mapping, schema))
        frame = map_table(table, mapping)
        assert frame.columns == [
            *("trajectory_id", "reward", "terminated", "truncated", "behavior_log_prob"),
            *("action", "behavior_logits"),
        ]
        assert not frame["truncated"].any()
        logits = frame["behavior_logits"].to_list()
        rebuilt = [
            row[action] - numpy.logaddexp.reduce(row)
            for row, action in zip(logits, frame["action"], strict=True)
        ]
        numpy.testing.assert_allclose(frame["behavior_log_prob"].to_numpy(), rebuilt, atol=1e-5)
