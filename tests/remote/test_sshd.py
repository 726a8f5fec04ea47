from __future__ import annotations

import subprocess

from sshd import Sshd


def test_the_login_node_of_tests_has_its_own_user_home_and_name(tmp_path):
    with Sshd(tmp_path / "a b", home=tmp_path / "the home") as far:
        command = 'id -un; pwd; hostname; echo "$HOME" $0'
        done = subprocess.run([far.ssh, "fir", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (
        f"ada\n{tmp_path}/the home\nfir-login1\n{tmp_path}/the home bash\n",
        "",
        0,
    )
