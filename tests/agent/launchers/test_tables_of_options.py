"""The options of launchers, compared with the installed launchers."""

from __future__ import annotations

import pytest
import torch.distributed.run
from accelerate.commands.launch import launch_command_parser

from serried.agent.launchers import command_lines
from tables import for_each

pytestmark = pytest.mark.torch


def names_of(action):
    return [option.replace("_", "-") for option in action.option_strings]


@for_each(
    ("syntax", "parser"),
    [
        (command_lines.TORCHRUN, torch.distributed.run.get_args_parser()),
        (command_lines.ACCELERATE, launch_command_parser()),
    ],
)
def test_the_tables_agree_with_the_installed_launchers(syntax, parser):
    takes_value = {name for action in parser._actions if action.nargs is None for name in names_of(action)}
    others = {name for action in parser._actions if action.nargs == 0 for name in names_of(action)}
    assert takes_value - syntax.valued - syntax.left_alone == set()
    assert others - syntax.flags - syntax.left_alone - syntax.no_launch == set()
    assert takes_value & syntax.flags == others & syntax.valued == set()
