"""Labels have one spelling, whatever program wrote them, in any kind of file, silo and split."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.label_names import label_name
from fednlp.data.readers.json_files import as_label
from fednlp.errors import DataError


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_a_value_and_what_programs_write_of_it_are_one_label(value: float) -> None:
    written = {as_label(value), label_name(str(value)), label_name(json.dumps(value)), as_label(str(value))}
    if isinstance(value, float) and value.is_integer():
        written |= {as_label(int(value)), label_name(str(int(value)))}
    assert len(written) == 1


@given(st.text() | st.from_regex(r"-?[0-9]{1,4}(\.[0-9]{0,3})?(e\+[0-9]{1,4})?", fullmatch=True))
def test_a_spelling_is_final_and_only_numbers_of_equal_value_become_one(label: str) -> None:
    name = label_name(label)
    assert label_name(name) == name
    if name != label and name not in ("true", "false"):
        assert math.isclose(float(name), float(label), rel_tol=0) or float(name) == float(label)
        assert float(label).is_integer()


def write(path: Path, labels: list[object]) -> None:
    texts = [f"{path.stem} {number}" for number in range(len(labels))]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts, "label": labels}), path)  # type: ignore[no-untyped-call]
    elif path.suffix == ".jsonl":
        rows = (json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True))
        path.write_text("\n".join(rows))
    else:
        path.write_text(
            "text,label\n" + "".join(f"{t},{one}\n" for t, one in zip(texts, labels, strict=True))
        )


@pytest.mark.parametrize(
    ("silos", "labels"),
    [
        (
            {"a.csv": ["0", "1"], "b.csv": ["0.0", "1.0"], "c.jsonl": [0, "1"], "d.parquet": [0.0, 1.0]},
            ("0", "1"),
        ),
        (
            {"a.csv": ["True", "false"], "b.csv": ["TRUE", "FALSE"], "c.jsonl": [True, "False"]},
            ("false", "true"),
        ),
        ({"a.csv": ["1.10", "1.1"], "b.csv": ["2.0.1", "beta"]}, ("1.1", "1.10", "2.0.1", "beta")),
        ({"a.csv": ["2e3", "1E+03"], "b.csv": ["1000", "1.0E3"]}, ("1000", "2e3")),
    ],
)
def test_silos_and_splits_have_the_same_labels(
    silos: dict[str, list[object]], labels: tuple[str, ...], tmp_path: Path
) -> None:
    for name, values in silos.items():
        write(tmp_path / name, values * 3)
    assert load_data(path=tmp_path).label_names == labels
    first, last = next(iter(silos)), list(silos)[-1]
    if len(silos) > 2:
        split = load_data(path=tmp_path / first, test_path=tmp_path / last)
        assert split.label_names == labels
        some = load_data(path=tmp_path / first, unlabelled=True)
        assert some.label_names == labels


def test_labels_may_have_other_names_or_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", ["sport", "Sport", "nan", "law", "1.0"] * 4)
    names = {"Sport": "sport", "nan": "", "1": "law"}
    data = load_data(path=tmp_path / "a.csv", labels_map=names)
    assert (data.label_names, len(data.train_numbers) + len(data.test_numbers)) == (("law", "sport"), 16)
    assert data.fingerprint != load_data(path=tmp_path / "a.csv").fingerprint
    with pytest.raises(
        DataError, match=r"data.labels_map: no example has the label 'sprt': did you mean 'sport'"
    ):
        load_data(path=tmp_path / "a.csv", labels_map={"sprt": "sport"})


@pytest.mark.parametrize("beside", [False, True])
def test_parquet_keeps_the_names_that_datasets_gave_to_numbers(beside: bool, tmp_path: Path) -> None:
    features = {"label": {"names": ["ham", "spam"], "_type": "ClassLabel"}}
    table = pa.table({"text": list("abcd"), "label": [0, 1, 0, 1]})
    if beside:
        (tmp_path / "dataset_info.json").write_text(json.dumps({"features": features}))
    else:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "train.parquet")  # type: ignore[no-untyped-call]
    assert load_data(path=tmp_path).label_names == ("ham", "spam")
