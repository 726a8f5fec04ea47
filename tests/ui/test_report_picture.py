"""The picture of a run over time. The samples of GPUs are stand-ins."""

from __future__ import annotations

import dataclasses

import pytest

from sampled import a_gpu, a_rank, write_samples
from serried.errors import UsageError
from serried.metrics import samples
from serried.metrics.measured import measured_of
from serried.metrics.samples import Samples
from serried.protocol.layout import TaskDirectory
from serried.report.usage import Usage
from serried.ui import report_picture

mpl = pytest.importorskip("matplotlib", reason="pip install matplotlib")


@pytest.fixture
def measure(tmp_path):
    def of(*nodes, attempts=1):
        place = TaskDirectory(tmp_path)
        for attempt in range(1, attempts + 1):
            for at, options in enumerate(nodes):
                write_samples(place.attempt(attempt), at, **options)
        found = samples.read(place)
        return Usage("k3f9q2", "train", measured=measured_of(found)), found

    return of


def titles(figure):
    found = [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
    return [title for title in found if title]


def test_a_panel_for_each_resource_with_its_unit(measure):
    figure = report_picture.figure(
        *measure({"gpus": [a_gpu(), a_gpu(55.0)], "ranks": [a_rank()] * 2}, {"gpus": [a_gpu()]})
    )
    assert titles(figure) == ["GPU busy", "GPU memory", "CPU", "memory"]
    units = [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()]
    assert sorted(units) == ["% of the time", "GiB", "GiB", "cores"]
    heatmap = figure.axes[0]
    assert [label.get_text() for label in heatmap.get_yticklabels()] == ["n1 GPU 0", "n1 GPU 1", "n2 GPU 0"]
    assert heatmap.images[0].get_array().shape[0] == 3
    assert heatmap.images[0].get_array()[1].mean() == pytest.approx(55)
    assert [axes.get_xlabel() for axes in figure.axes if axes.get_xlabel()] == ["time in minutes"]


def test_a_run_without_gpus_has_two_panels(measure):
    assert titles(report_picture.figure(*measure({}))) == ["CPU", "memory"]


def test_the_use_of_a_whole_node_is_compared_with_the_node(measure):
    usage, found = measure({"scope": "node"})
    figure = report_picture.figure(dataclasses.replace(usage, cpus=2, memory=1 << 30), found)
    whole = "(of the whole node, with other jobs)"
    assert titles(figure) == [f"CPU {whole}", f"memory {whole}"]
    assert [axes.lines[-1].get_ydata()[0] for axes in figure.axes] == [16, 128]


def test_a_lost_gpu_leaves_a_gap(measure):
    figure = report_picture.figure(*measure({"gpus": [a_gpu(), a_gpu()], "lost": 1}))
    cells = figure.axes[0].images[0].get_array()
    assert [int(row.mask.sum() > 0) for row in cells] == [0, 1]


def test_lines_that_are_left_out_leave_no_gap_and_are_in_the_title(measure, tmp_path):
    usage, _ = measure({"gpus": [a_gpu()], "minutes": 1000})
    some = samples.read(TaskDirectory(tmp_path), most_lines=100)
    figure = report_picture.figure(usage, some)
    assert figure.axes[0].images[0].get_array().mask.sum() == 0
    assert figure.get_suptitle() == f"k3f9q2 (train): use over time, one line in {some.one_in} was read"


def test_attempts_follow_each_other_with_a_line_between(measure):
    figure = report_picture.figure(*measure({"gpus": [a_gpu()], "minutes": 10}, attempts=3))
    heatmap = figure.axes[0]
    assert heatmap.get_xlim() == pytest.approx((0, 30))
    assert [line.get_xdata()[0] for line in heatmap.lines] == pytest.approx([10, 20])


def test_many_gpus_get_few_labels_and_three_curves(measure):
    nodes = [{"gpus": [a_gpu(10.0 * gpu) for gpu in range(8)], "minutes": 5} for _ in range(16)]
    figure = report_picture.figure(*measure(*nodes))
    assert len(figure.axes[0].get_yticks()) == 32
    assert "GPU memory (the lowest, the median and the highest of 128)" in titles(figure)


def test_a_clock_that_jumps_does_not_stretch_the_axis(tmp_path):
    path = write_samples(TaskDirectory(tmp_path).attempt(1), gpus=[a_gpu()])
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[10] = lines[10].replace('"t": 1795', '"t": 1095')
    lines[20] = lines[20].replace('"t": 1795', '"t": 9795')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = samples.read(TaskDirectory(tmp_path))
    figure = report_picture.figure(Usage("k3f9q2", measured=measured_of(found)), found)
    assert figure.axes[0].get_xlim() == pytest.approx((0, 30))


def test_files_are_written_and_odd_names_harm_nothing(measure, tmp_path):
    usage, found = measure({"gpus": [a_gpu()]})
    for name in ("use.png", "use.svg", "use.pdf"):
        report_picture.write(Usage("k3f9q2", "$a\n\x1b[2J", measured=usage.measured), found, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_a_run_without_samples_has_no_picture(tmp_path):
    with pytest.raises(UsageError) as raised:
        report_picture.write(Usage("k3f9q2", missing="the run has not started"), Samples(), tmp_path / "use.png")
    assert raised.value.message == "`--plot` has nothing to draw for `k3f9q2`: the run has not started"
