"""Tab in a real bash: the script is installed by the command itself, and asks it for names."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.conftest import PATIENCE_SECONDS, SCRIPT

# Sources what was installed and completes the words behind it as bash would.
TAB = """
source "$HOME/.bash_completions/paceline.sh"
COMP_WORDS=(paceline "$@"); COMP_CWORD=$#
_paceline_completion paceline
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A home folder in which completion was installed."""
    folder = tmp_path_factory.mktemp("home")
    environment = {**os.environ, "HOME": str(folder), "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}"}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    command = [SCRIPT, "--install-completion", "bash"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "bash completion installed in" in done.stdout
    assert "paceline.sh" in (folder / ".bashrc").read_text()
    return environment


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("reco",), {"recommend"}),
        (("run", "--strategy", "torch-dd"), {"torch-ddp"}),
        (("run", "--worklo"), {"--workload"}),
        (("predict", "--system", "8xh200-n"), {"8xh200-nvlink"}),
        (("run", "--device", "cpu,cuda-"), {"cpu,cuda-slice"}),
        (("export", "--to", "w"), {"wandb"}),
    ],
)
def test_tab_offers_commands_options_and_names(
    home: dict[str, str], words: tuple[str, ...], offered: set[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        ["bash", "-c", TAB, "bash", *words], env=home, cwd=tmp_path, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert set(done.stdout.split()) == offered, done.stderr
