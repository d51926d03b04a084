"""One submission as an sbatch call, through submitit's Slurm executor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core.utils import FailedSubmissionError
from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from sweep.adapters.slurm.queue_text import script_name
from sweep.adapters.slurm.refusal import error_of
from sweep.adapters.slurm.script import launch_command, sbatch_parameters
from sweep.core.records.record import SUBMISSION_LOGS_DIR
from sweep.ports import SchedulerError, SubmissionUncertainError

if TYPE_CHECKING:
    from sweep.adapters.slurm.commands import SlurmCommands
    from sweep.core.jobs.submission import Submission
    from sweep.core.settings.spec import SlurmSpec

_JOB_ID = re.compile(r"^Submitted batch job (\d+)", re.MULTILINE)


class LaunchExecutor(SlurmExecutor):
    """submitit's executor for a job that reads the submission's file: nothing is pickled, no job is watched.

    Args:
        submission: What to run; its file is written already.
        spec: The site's settings.
        python: Interpreter on the compute nodes.
        commands: Runs sbatch.
    """

    def __init__(self, submission: Submission, spec: SlurmSpec, *, python: str, commands: SlurmCommands) -> None:
        super().__init__(Path(submission.run_dir) / SUBMISSION_LOGS_DIR)
        self._submission, self._spec, self._commands = submission, spec, commands
        self._interpreter = submission.launch.python or python
        self.update_parameters(**sbatch_parameters(submission, spec))
        if len(submission.tasks) > 1:
            # What map_array() sets: an array of so many tasks. A single task is a plain job.
            self.parameters["map_count"] = len(submission.tasks)

    @classmethod
    def affinity(cls) -> int:
        """Always fit: submitit would look for srun on this process's PATH instead of the one that was given."""
        return 2

    @property
    def _submitit_command_str(self) -> str:
        return launch_command(self._submission, self._spec, self._interpreter)

    def _submit_command(self, command: str) -> SlurmJob[Any]:
        """Write the job script and run sbatch once.

        submitit's own runs sbatch without a time-out and with this process's whole environment, prints its errors, and
        renames the script afterwards, which a crash in between would leave undone.
        """
        script = self.folder / script_name(self._submission.name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            script.write_text(self._make_submission_file_text(command, self._submission.name))
        except OSError as error:
            raise SchedulerError(f"the job script {script} cannot be written: {error}") from error
        answer = self._commands.submit(self._make_submission_command(script))
        if answer.returncode != 0:
            raise error_of(answer)
        try:
            job_id = self._get_job_id_from_submission_command(answer.stdout)
        except FailedSubmissionError as error:
            raise SubmissionUncertainError(f"sbatch gave no job id but {answer.stdout.strip()!r}") from error
        return SlurmJob(folder=self.folder, job_id=job_id, tasks=[0])

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        """The id in sbatch's own line; a site's wrapper may print more, and other numbers, around it."""
        text = string if isinstance(string, str) else string.decode()
        found = _JOB_ID.search(text)
        return found[1] if found else SlurmExecutor._get_job_id_from_submission_command(text)

    def submit_launch(self) -> str:
        """Submit; gives the id of the job or array.

        Raises:
            SubmissionRejectedError: If it was refused.
            SubmissionUncertainError: If it may have been taken all the same.
            SchedulerError: If it was certainly not taken.
        """
        return str(self._submit_command(self._submitit_command_str).job_id)
