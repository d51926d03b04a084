"""Submits one job through submitit's Slurm executor. No other module of the project imports submitit.

submitit offers no public way to submit a command of one's own, so this module overrides and calls private names of
``SlurmExecutor``. ``tests/sweep/adapters/slurm/test_submitit_private_names.py`` lists them with the shape that each
must have; docs/adr/0020-what-of-submitit-is-used.md says why they are worth it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core.utils import FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from sweep.adapters.slurm.fields import script_name
from sweep.adapters.slurm.refusal import error_of
from sweep.adapters.slurm.script import launch_command, sbatch_parameters
from sweep.core.attempts.error_text import STORAGE_ERRORS
from sweep.core.records.layout import SUBMISSION_LOGS_DIR
from sweep.files import write_atomically
from sweep.ports import SchedulerError, SubmissionUncertainError

if TYPE_CHECKING:
    from sweep.adapters.slurm.commands import Answer, SlurmCommands
    from sweep.core.jobs.submission import Submission
    from sweep.core.settings.spec import SlurmSpec

_JOB_ID = re.compile(r"^Submitted batch job (\d+)", re.MULTILINE)


class LaunchExecutor(SlurmExecutor):
    """Submits a job that runs the launcher on the submission's file. It pickles nothing and watches no job.

    Args:
        submission: The submission; its file is on disk already.
        spec: The site's settings.
        python: Interpreter on the compute nodes where the submission names none.
        commands: Runs sbatch.
    """

    def __init__(self, submission: Submission, spec: SlurmSpec, *, python: str, commands: SlurmCommands) -> None:
        super().__init__(Path(submission.run_dir) / SUBMISSION_LOGS_DIR)
        self._submission, self._spec, self._commands = submission, spec, commands
        self._interpreter = submission.launch.python or python
        self.update_parameters(**sbatch_parameters(submission, spec))
        if len(submission.tasks) > 1:
            # submitit's map_array() sets this to ask for an array; a single task is a plain job.
            self.parameters["map_count"] = len(submission.tasks)

    def submit_launch(self) -> str:
        """Submit the job; returns the id of the job or array.

        Raises:
            SubmissionRejectedError: If Slurm refused it.
            SubmissionUncertainError: If Slurm may have accepted it all the same.
            SchedulerError: If Slurm certainly did not receive it.
        """
        return str(self._submit_command(self._submitit_command_str).job_id)

    def test_launch(self) -> Answer:
        """Give the same job script to ``sbatch --test-only``, which submits nothing.

        Raises:
            SchedulerError: If sbatch cannot be run, or the script cannot be written.
        """
        return self._commands.submit(["sbatch", "--test-only", str(self._write_script(self.script_text()))])

    def script_text(self) -> str:
        """The job script."""
        return self._make_submission_file_text(self._submitit_command_str, self._submission.name)

    @classmethod
    def affinity(cls) -> int:
        """Always 2, "can submit": submitit would look for srun on this process's PATH, not on the commands' PATH."""
        return 2

    @property
    def _submitit_command_str(self) -> str:
        """The launcher's command in the place of submitit's own, which would unpickle a function."""
        return launch_command(self._submission, self._spec, self._interpreter)

    def _submit_command(self, command: str) -> SlurmJob[Any]:
        """Write the job script and run sbatch once.

        submitit's method runs sbatch without a timeout and with this process's whole environment, prints its errors,
        and renames the script afterwards, which a crash in between would leave undone.
        """
        script = self._write_script(self._make_submission_file_text(command, self._submission.name))
        answer = self._commands.submit(self._make_submission_command(script))
        if answer.returncode != 0:
            raise error_of(answer)
        try:
            job_id = self._get_job_id_from_submission_command(answer.stdout)
        except FailedSubmissionError as error:
            raise SubmissionUncertainError(f"sbatch gave no job id but {answer.stdout.strip()!r}") from error
        return SlurmJob(folder=self.folder, job_id=job_id, tasks=[0])

    def _write_script(self, text: str) -> Path:
        script = self.folder / script_name(self._submission.name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(script, text)
        except OSError as error:
            if error.errno in STORAGE_ERRORS:
                raise  # the run directory's, not the scheduler's
            raise SchedulerError(f"the job script {script} cannot be written: {error}") from error
        return script

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        """The id in sbatch's own line; a site's wrapper may print other lines and numbers around it."""
        text = string if isinstance(string, str) else string.decode()
        found = _JOB_ID.search(text)
        return found[1] if found else SlurmExecutor._get_job_id_from_submission_command(text)
