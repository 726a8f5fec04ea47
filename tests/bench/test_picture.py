"""A bench as a picture, drawn by the real matplotlib."""

from serried.bench import picture
from serried.bench.results import RunFigures, results
from serried.bench.store import Bench, grid
from serried.views import pictures

BENCH = Bench("b-abcd", "res$net", "2026-11-26T12:00:00Z", {}, ())


def measured():
    points = grid(nodes=[1, 2], ranks=[1, 2], launches=["agent", "mpirun"], methods=["dp", "ddp"], repeats=2)
    runs = []
    for point in points:
        rate = 100.0 * point.world * (0.5 if point.method == "dp" else 0.9) + point.repeat + point.nodes
        runs.append((point, RunFigures("k3f9q2", "COMPLETED", "", 90, rate, 8.0, device="V100", gpus=point.world)))
    return results(runs)


def panels(found):
    with pictures.drawing():
        return picture.figure(BENCH, found).axes


def test_each_way_is_a_line_with_a_marker_and_a_style_of_its_own_beside_the_ideal():
    speed, efficiency = panels(measured())
    assert [text.get_text() for text in speed.get_legend().get_texts()] == ["ideal", "dp", "agent", "mpirun"]
    looks = [(line.get_marker(), line.get_linestyle()) for line in efficiency.get_lines()[1:]]
    assert looks == [("o", "-"), ("s", "--"), ("^", "-.")]
    ideal, rate = speed.get_lines()[0], measured().rows[0].samples_per_second
    assert [*zip(ideal.get_xdata(), ideal.get_ydata(), strict=True)] == [(1, rate), (2, 2 * rate), (4, 4 * rate)]


def test_axes_have_units_and_name_the_shapes_of_each_size():
    speed, efficiency = panels(measured())
    assert (speed.get_ylabel(), efficiency.get_ylabel()) == ("samples per second", "efficiency against 1 rank, %")
    assert [tick.get_text() for tick in speed.get_xticklabels()] == ["1\n1x1", "2\n1x2\n2x1", "4\n2x2"]
    label = "GPUs, as nodes x GPUs on each; of several, the fastest is drawn; bars: standard deviation"
    assert speed.figure.get_supxlabel() == label


def test_a_picture_is_written_also_before_the_first_point_is_measured(tmp_path):
    for name, found in (("all.png", measured()), ("none.svg", results([])), ("all.pdf", measured())):
        picture.write(BENCH, found, tmp_path / name)
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "all.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "none.svg").read_bytes().startswith(b"<?xml")
    (speed, _) = panels(results([]))
    assert [text.get_text() for text in speed.texts] == ["no point is measured yet"]
