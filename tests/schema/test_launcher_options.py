"""The options of launchers, compared with the installed launchers."""

from __future__ import annotations

import pytest
import torch.distributed.run
from accelerate.commands.launch import launch_command_parser

from serried.schema import launchers
from tables import for_each

pytestmark = pytest.mark.torch


@for_each(
    ("syntax", "parser"),
    [
        (launchers.TORCHRUN_OPTIONS, torch.distributed.run.get_args_parser()),
        (launchers.ACCELERATE_OPTIONS, launch_command_parser()),
    ],
)
def test_the_tables_agree_with_the_installed_launchers(syntax, parser):
    def options_with(nargs):
        options = [
            name.replace("_", "-") for each in parser._actions if each.nargs == nargs for name in each.option_strings
        ]
        return {syntax.long_names.get(name, name) for name in options}

    takes_value, others = options_with(None), options_with(0)
    assert takes_value - syntax.valued - syntax.left_alone == set()
    assert others - syntax.flags - syntax.left_alone - syntax.no_launch == set()
    assert takes_value & syntax.flags == others & syntax.valued == set()
