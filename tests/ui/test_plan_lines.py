from __future__ import annotations

import pytest

from building import a_plan
from serried.snapshot import Revision
from serried.ui.plan_lines import plan_lines


@pytest.mark.parametrize(
    ("allocation", "ranks"),
    [
        ({"nodes": 1, "ranks": 4, "gpus": 4}, "4 ranks on 1 node"),
        ({"nodes": 1, "ranks": 2, "gpus": 4}, "2 ranks on 1 node, 2 GPUs for each"),
        ({"nodes": 2, "ranks": 1, "gpus": 4}, "2 nodes, 1 rank on each: 2 in all, 4 GPUs for each"),
        ({"nodes": 2, "ranks": 8, "gpus": 0}, "2 nodes, 8 ranks on each: 16 in all"),
    ],
)
def test_gpus_that_a_rank_has_beside_its_first_are_said(allocation, ranks):
    assert dict(plan_lines(a_plan(**allocation), None, Revision()))["ranks"] == ranks
