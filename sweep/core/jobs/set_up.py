"""Makes the shell text that runs a site's set-up lines one by one, and reads from a log which of them failed."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence

from sweep.core.attempts.attempt import JobReport, Outcome, Phase

PASSED = "SWEEP_SET_UP"
"""Variable of a job whose set-up lines all passed: their hash."""

# It needs no program but mktemp and rm: a line may have broken PATH. A line runs once those so far are a whole command
# for `bash -n`: it may be the beginning of an `if`. `|` makes a file be overwritten under `set -o noclobber`.
_FUNCTIONS = r"""sweep_block= sweep_whole= sweep_words=/dev/null
if sweep_file=$(mktemp 2>/dev/null || mktemp /tmp/sweep.XXXXXX); then
  exec {sweep_fd}<>"$sweep_file" && sweep_words=/dev/fd/$sweep_fd
  rm -f -- "$sweep_file"
fi
sweep_module='(^|[;&|({[:space:]])(module|ml)[[:space:]]'
sweep_error='(^|[^[:alnum:]_])error:|unable to lo(ad|cate) '
sweep_next() {
  sweep_block+=${sweep_block:+$'\n'}$1 sweep_whole=
  [[ $1 == *\\ ]] || [[ $(LC_ALL=C BASH_ENV= "$BASH" -n -c "$sweep_block" 2>&1) ]] || sweep_whole=$sweep_block
}
sweep_passed() {
  [[ $sweep_whole ]] || return 0
  local line said= error= ended=${2:-ended}
  mapfile -t sweep_lines <"$sweep_words"
  for line in ${sweep_lines[@]+"${sweep_lines[@]}"}; do
    printf '%s\n' "$line" >&2
    [[ $line == +* || $line != *[![:space:]]* ]] && continue
    [[ ! $error && ${line,,} =~ $sweep_error ]] && error=1 said=
    said+=${said:+; }$line
  done
  line=${sweep_whole//[[:cntrl:]]/ } said=${said//[[:cntrl:]]/ }
  if [[ $1 != 0 || $ended != ended || ($error && $line =~ $sweep_module) ]]; then
    [[ $error ]] || ((${#said} < 300)) || said=${said: -300}
    printf 'sweep: set-up %s failed on %s: `%s` %s with exit code %s: %s\n' "$sweep_hash" \
      "${SLURMD_NODENAME:-$HOSTNAME}" "${line:0:200}" "$ended" "$1" "${said:0:300}"
    sweep_whole=
    exit 1
  fi
  sweep_block= sweep_whole=
}
trap 'sweep_code=$?; exec 2>&1; ((sweep_code > 128)) || sweep_passed "$sweep_code" "ended the script"' EXIT"""
_RUN = 'eval "$sweep_whole" 2>|"$sweep_words"; sweep_passed $?'
_FAILED = re.compile(
    r"^sweep: set-up (?P<digest>[0-9a-f]{8}) failed on (?P<node>\S+): (?P<text>.+?):?\s*$", re.MULTILINE
)


def set_up_script(setup: Sequence[str]) -> list[str]:
    """Lines of a bash script that run set-up lines in its own shell, and end it at the first that fails.

    A line fails by its exit status, or where it calls ``module`` or ``ml``, whose old versions always return 0, by an
    error on standard error. The script then says so in one line, with the line's words.
    """
    if not setup:
        return []
    digest = hashlib.sha256("\n".join(setup).encode()).hexdigest()[:8]
    return [
        f"sweep_hash={digest}",
        _FUNCTIONS,
        *(f"sweep_next {shlex.quote(line)}; {_RUN}" for line in setup),
        f"sweep_whole=$sweep_block; {_RUN}",
        f"[[ ! ${{sweep_fd:-}} ]] || exec {{sweep_fd}}>&-; export {PASSED}=$sweep_hash",
    ]


def failure_in(log: str) -> JobReport | None:
    """The end of a job by a set-up line that failed, as its log tells; None where none failed in its last run."""
    # Each run of a job says its zone first; one that was requeued goes on in the same log.
    found = _FAILED.search(log.rpartition("\nsweep: zone ")[2])
    if found is None:
        return None
    return JobReport(
        state="FAILED",
        phase=Phase.ENDED,
        reason=f"the set-up line {found['text']}",
        at_fault=(found["node"],),
        outcome=Outcome.TRAINER_ERROR,
        set_up=found["digest"],
    )
