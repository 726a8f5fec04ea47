"""The files that lead a job script's launchers to `agent.pyz launch`: functions of bash, and programs for PATH.

    bash_env       functions for each launcher, which every bash of the job reads first by BASH_ENV. They keep working
                   where a module or a virtual environment puts its own launcher first on PATH. Programs that only the
                   script can name, such as `./train.py` or `$VENV/bin/torchrun`, get a function just before they run.
    bin/NAME       for `exec srun`, for what programs such as `timeout 1h torchrun` start, and for other shells:
                   programs of bash, and of Python too, for `python $(which torchrun)`
    rank           the rank program

Each file starts the program itself where this node does not have Serried's Python, such as in a container. The
functions keep to what bash 4.2 has. Text without side effects, except for `write`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Dict, Sequence

from serried.agent.ranks.command import SUBMITTERS
from serried.base import files
from serried.schema import names

FIRST_LINE = "#!/bin/bash -p"
"""With `-p` bash reads no BASH_ENV, and passes on the functions that the script exports; dash drops them."""


def write(folder: Path, agent: Sequence[str], address: str) -> Dict[str, str]:
    """Write all files. Returns variables for the script. `agent` is the command of its roles, `address` for ranks."""
    from serried.schema.launchers import LAUNCHERS

    write_submitters(folder, agent)
    _write(folder / "bash_env", bash_env(folder, agent), 0o600)
    _write(folder / "rank", rank(agent, address))
    for name in LAUNCHERS:
        _write(folder / "bin" / name, program(name, folder, agent))
    return variables(folder)


def _write(path: Path, text: str, mode: int = 0o700) -> None:
    """Not durable: after a crash of the node nothing of the attempt runs there."""
    files.write_bytes(path, text.encode("utf-8", "surrogateescape"), mode, durable=False)


def write_submitters(folder: Path, agent: Sequence[str]) -> str:
    """Write the commands of this node that submit jobs. Returns their folder; empty if PATH would not find them."""
    files.make_directory(folder / "bin", 0o700)
    written = [folder / "bin" / name for name in SUBMITTERS if files.find_program(name)]
    for path in written:
        _write(path, program(path.name, folder, agent))
    return str(folder / "bin") if written and os.access(written[0], os.X_OK) else ""


def folder(attempt: Path) -> Path:
    return attempt / "shims"


def variables(folder: Path) -> Dict[str, str]:
    return {names.SHIMS: str(folder), "BASH_ENV": str(folder / "bash_env")}


def rank(agent: Sequence[str], address: str) -> str:
    """The program that a launcher starts as `rank LAUNCH PROGRAM…`."""
    return f"""{FIRST_LINE}
# Written by Serried: runs one rank of a launch in a job script.
{_is_usable(agent)} && exec {shlex.join([*agent, "rank-through", address])} "$@"
case $1 in --local[-_]rank=*) rank=$1; shift ;; *) rank= ;; esac
shift
exec "$@" $rank
"""


def program(name: str, folder: Path, agent: Sequence[str]) -> str:
    """The program NAME of `bin/`. In Python its first statement is a string."""
    launch = [*agent, "outside" if name in SUBMITTERS else "launch", str(folder)]
    return f"""{FIRST_LINE}
'''':  # Written by Serried: starts {name}, with logs for its ranks or without what Serried has set.
if {_is_usable(agent)}; then exec {shlex.join(launch)} {name} "$@"; fi
IFS=:
for folder in $PATH; do
    [ "$folder" = {shlex.quote(str(folder / "bin"))} ] || ! [ -x "$folder/{name}" ] || exec "$folder/{name}" "$@"
done
echo "{name}: command not found" >&2
exit 127
'''
import os
import sys

command = {list(launch)!r} + ["--with", sys.executable, {name!r}] + sys.argv[1:]
os.execv(command[0], command)
"""


def bash_env(folder: Path, agent: Sequence[str]) -> str:
    """The file for BASH_ENV. After it a script finds the shell as it would be without."""
    from serried.schema.launchers import LAUNCHERS, MODULES, REQUEUES  # the commands that submit jobs need none

    modules = "|".join(f'*" -m {module} "*|*" -m{module} "*' for module in MODULES)
    every = (*LAUNCHERS, "python", "python3", REQUEUES, *WRAPPERS, *ENVIRONMENTS)
    hidden = (*every, *LOOKUPS, *SUBMITTERS)
    text = _BASH_ENV
    for key, value in {
        "@BIN@": shlex.quote(str(folder / "bin")),
        "@FOLDER@": shlex.quote(str(folder)),
        "@AGENT@": shlex.join(agent),
        "@USABLE@": _is_usable(agent),
        "@JOB@": names.SCRIPT_JOB,
        "@STAND_INS@": names.STAND_INS,
        "@USER@": names.USER_BASH_ENV,
        "@MODULES@": modules,
        "@LOOKED_UP@": "|".join(f'*" {name} "*' for name in hidden),
        "@NAMES@": " ".join(hidden),
        "@CALL@": names.LAUNCH_CALL,
        "@REPORT@": names.FAILURE_REPORT,
        "@WRAPPERS@": "|".join((*WRAPPERS, *ENVIRONMENTS)),
        "@ENVIRONMENTS@": "|".join(ENVIRONMENTS),
        "@LAUNCHERS@": "|".join(LAUNCHERS),
        "@BODY@": shlex.quote(_BODY),
        "@REQUEUES@": REQUEUES,
        "@EVERY@": " ".join(every),
        "@LOOKUPS@": "".join(_LOOKUP.replace("@NAME@", name) for name in LOOKUPS),
    }.items():
        text = text.replace(key, value)
    return text


def _is_usable(agent: Sequence[str]) -> str:
    return f"[ -x {shlex.quote(agent[0])} ] && [ -r {shlex.quote(agent[-1])} ]"


WRAPPERS = ("timeout", "nice", "nohup", "env", "xargs", "stdbuf", "setsid", "ionice", "chrt", "taskset", "numactl")
"""Programs that start the program among their arguments, and fail where it fails."""

ENVIRONMENTS = ("uv", "pixi", "micromamba", "poetry", "apptainer", "singularity", "ch-run")
"""The same for programs that stand in another environment, whose names the script's PATH may not have."""

LOOKUPS = ("command", "type", "which")
"""Commands of the shell that print where a program is, and for which there are functions too."""

_BASH_ENV = r"""# Written by Serried: functions for the launchers of a job script.
{ __serried_last=$_ __serried_set=$-; set +x; } 2>/dev/null
__serried_user=${@USER@-}
case $__serried_set in *x*) set -x ;; esac
{ [ -n "$__serried_user" ] && [ -r "$__serried_user" ]; } 2>/dev/null && . "$__serried_user"
{ __serried_set=$-; set +x; } 2>/dev/null

__serried_job=${@JOB@-}
__serried_variable=${__serried_job%%=*}
if ! { @USABLE@; }; then
    :
elif [[ -n $__serried_job && ${!__serried_variable-} != "${__serried_job#*=}" ]]; then
eval "$(@AGENT@ outside)" # this is another job
else

case ":$PATH:" in *:@BIN@:*) ;; *) PATH=@BIN@:$PATH ;; esac
__serried_bin=@BIN@ __serried_calls=0

# PATH without the programs of this folder.
__serried_clean() {
    __serried_path=:$PATH:
    __serried_path=${__serried_path//":$__serried_bin:"/:}
    __serried_path=${__serried_path#:}
    __serried_path=${__serried_path%:}
}

# Whether this shell was started with `&`: then it ignores SIGQUIT, as other subshells do not. Its pid is the $! of the
# script, so it alone gets the signals of `kill $!`.
__serried_is_background() {
    [[ $BASHPID != "$$" ]] && __serried_ignores 3
}
__serried_ignores() {
    local IFS=$' \t\n' key value
    while read -r key value; do
        if [[ $key == SigIgn: ]]; then
            (( (16#${value: -8} >> ($1 - 1)) & 1 ))
            return
        fi
    done 2>/dev/null <"/proc/$BASHPID/status"
    return 1
}

# Run a program, and pass signals on to it. Sets the caller's __serried_status. In a shell that was started with `&` the
# traps come first: a signal may arrive as soon as the program runs.
__serried_run() {
    local __serried_errors=
    if ! __serried_is_background; then
        # Without `command`: in bash 4.2, a failure after that builtin runs ERR traps although it is handled.
        if exec {__serried_errors}>&2; then
            # Bash reports a signal with the line of this file; see __serried_report.
            {
                ( exec "$@" 2>&"$__serried_errors" {__serried_errors}>&- ) && __serried_status=0 || __serried_status=$?
            } 2>/dev/null
            exec {__serried_errors}>&-
        else
            ( exec "$@" ) && __serried_status=0 || __serried_status=$?
        fi
        return 0
    fi
    local pid= name theirs pending passed=()
    # After a `trap` of its own, a subshell prints only the traps that are set in it, not those of its parent.
    trap - RTMAX
    theirs=$(trap -p)
    for name in HUP:1 INT:2 QUIT:3 USR1:10 USR2:12 TERM:15; do
        [[ $theirs == *" SIG${name%:*}"* ]] || __serried_ignores "${name#*:}" && continue
        trap "__serried_pass ${name%:*}" "${name%:*}"
        passed+=("${name%:*}")
    done
    exec "$@" <&0 &
    pid=$!
    [[ -z $__serried_signal ]] || __serried_pass "$__serried_signal"
    while :; do
        pending=
        { wait "$pid" && __serried_status=0 || __serried_status=$?; } 2>/dev/null
        [[ -n $pending ]] || break
    done
    trap - RTMAX ${passed[@]+"${passed[@]}"}
    return 0
}
__serried_pass() {
    __serried_signal=$1 pending=1
    [[ -z $pid ]] || kill "-$1" "$pid" 2>/dev/null
}

__serried_count() {
    __serried_calls=$((__serried_calls + 1))
    __serried_call=${HOSTNAME-}.$BASHPID.$__serried_calls.$SECONDS
}

# Run a launcher, a Python, or a program that starts one of them.
__serried_start() {
    case ${1##*/} in
        @LAUNCHERS@) __serried_launch "$@" ;;
        @WRAPPERS@) __serried_wrapper "$@" ;;
        @REQUEUES@) __serried_requeue "$@" ;;
        *) __serried_python "$@" ;;
    esac
}

# Before each command of the script: a program that is a Python or a launcher gets a function too, whatever its name.
# Called as `__serried_before "$@" "$_"`. A script with such a trap of its own has this one no longer.
__serried_before() {
    case ${FUNCNAME[1]-} in __serried_*) return ;; esac
    local IFS=$' \t\n' text=$BASH_COMMAND word
    word=${text%%[[:space:]]*}
    case $word in
        set)
            # The first option alone: what follows `--` are words of the script.
            text=${text#set}
            text=${text#"${text%%[![:space:]]*}"}
            case ${text%%[[:space:]]*} in
                --*) text= ;;
                [-+]*T*) ;;
                *) [[ $text == ?o\ functrace* ]] || text= ;;
            esac ;;
        trap)
            # Its signals come after the last quote.
            text=${text%[\"\']}
            [[ $text == trap || $text == trap\ -p* || ${text##*[\"\']} == @(*DEBUG*|*RETURN*) ]] || text= ;;
        shopt) [[ $text == *extdebug* ]] || text= ;;
        *) text= ;;
    esac
    if [[ -n $text ]]; then
        set +T
        trap - DEBUG
        return
    fi
    text=$BASH_COMMAND
    while [[ $word == [A-Za-z_]*=* ]]; do
        text=${text#"$word"}
        text=${text#"${text%%[![:space:]]*}"}
        word=${text%%[[:space:]]*}
    done
    case $word in
        *[\$\~\"\']*)
            case $word in *[!][A-Za-z0-9/._+~\$\"\'{}@*#%-]*|*\[*++*|*\[*--*) return ;; esac
            text=$-
            set +u
            eval "word=$word"
            case $text in *u*) set -u ;; esac
            word=${word%%[[:space:]]*} ;;
    esac
    case $word in ''|*[!A-Za-z0-9/._+-]*) return ;; esac
    if [[ $__serried_path_seen != "$PATH" ]]; then
        __serried_path_seen=$PATH
        __serried_seen=()
    fi
    [[ -z ${__serried_seen[$word]-} ]] || return 0
    case $word in [!/]*/*) ;; *) __serried_seen[$word]=1 ;; esac
    if ! declare -F "$word" >/dev/null && [[ ! -o posix ]] && __serried_is_caught "$word"; then
        __serried_define "$word"
        __serried_found+=("$word")
    fi
}

# Whether this program is a launcher, or runs in a Python.
__serried_is_caught() {
    case ${1##*/} in @LAUNCHERS@|@WRAPPERS@) [[ $1 == */* ]]; return ;; esac
    __serried_is_python "$1"
}
__serried_is_python() {
    local IFS=$' \t\n' file=$1 first= second=
    # Scripts train on where these found no network, or nothing to do.
    case ${1##*/} in pip|pip[0-9]*|conda|mamba) return 1 ;; esac
    case ${1##*/} in *-*) ;; python|python[0-9]*|pypy*) return 0 ;; esac
    [[ $file == */* ]] || file=$(builtin type -P -- "$1")
    [[ -f $file && -r $file && -x $file ]] || return 1
    { IFS= read -r -n 512 first; IFS= read -r -n 512 second; } <"$file"
    case $first in
        '#!'*python*|'#!'*pypy*|'#!'*[/\ ]uv\ *) return 0 ;;
        '#!'*/sh) [[ $second == "'''exec' "* ]] ;;
        '#!'*) return 1 ;;
        *) [[ -L $file && $(readlink -f -- "$file") == */@(python|pypy)[0-9.]* ]] ;;
    esac
}

# A refused requeue is the failure of a script that relies on it.
__serried_requeue() {
    if ! builtin type -P "$1" >/dev/null 2>&1; then
        __serried_missing "$@"
        return 0
    fi
    if [[ ${2-} == requeue && ( ${3-} == "${__serried_job#*=}" || ${3-} == [0-9]*_[0-9]* ) ]]; then
        __serried_count
        # `incomplete`: a job that was cancelled stays so, also where a trap for TERM requeues it.
        set -- "$1" "$2" incomplete "${@:3}"
    fi
    __serried_run "$@"
}

__serried_launch() {
    local __serried_path
    __serried_count
    __serried_clean
    if [[ ${@STAND_INS@-} != "$1" ]] && ! PATH=$__serried_path builtin type -P "$1" >/dev/null 2>&1; then
        __serried_missing "$@"
        return 0
    fi
    __serried_run @AGENT@ launch @FOLDER@ --call "$__serried_call" "$@"
}

__serried_python() {
    if __serried_starts_ranks "${@:2}"; then
        __serried_launch "$@"
        return
    fi
    __serried_count
    if ! builtin type -P "$1" >/dev/null 2>&1; then
        __serried_missing "$@"
        return 0
    fi
    local -x @REPORT@=${@REPORT@:+$@REPORT@@$__serried_call}
    __serried_run "$@"
    __serried_report "$@"
}

__serried_starts_ranks() {
    local IFS=' '
    case " $* " in
        @MODULES@) return 0 ;;
    esac
    return 1
}

__serried_wrapper() {
    if ! builtin type -P "$1" >/dev/null 2>&1; then
        __serried_missing "$@"
        return 0
    fi
    local __serried_program=
    __serried_find_program "$@"
    case $__serried_program in
        '') ;;
        @LAUNCHERS@) __serried_count; local -x @CALL@=$__serried_call ;;
        *) __serried_count; local -x @REPORT@=${@REPORT@:+$@REPORT@@$__serried_call} ;;
    esac
    __serried_run "$@"
    # The script set this limit itself.
    [[ $1 != timeout || $__serried_status != 124 ]] || __serried_call=
}
# The first program among the words of a wrapper, if it is a launcher or a Python.
__serried_find_program() {
    local word inside=
    for word; do
        case ${word##*/} in
            @ENVIRONMENTS@) inside=1; continue ;;
            @WRAPPERS@|-*|*=*) continue ;;
        esac
        if [[ -n $inside ]]; then
            case ${word##*/} in
                @LAUNCHERS@|python|python[0-9]*|*.py) __serried_program=$word; return 0 ;;
            esac
            continue
        fi
        if builtin type -P -- "$word" >/dev/null 2>&1; then
            case ${word##*/} in @LAUNCHERS@) ;; *) __serried_is_python "$word" || return 0 ;; esac
            __serried_program=$word
            return 0
        fi
    done
}

# As bash does it where it finds no program.
__serried_missing() {
    __serried_status=127
    if declare -F command_not_found_handle >/dev/null; then
        command_not_found_handle "$@" || __serried_status=$?
        return 0
    fi
    printf '%s: line %s: %s: command not found\n' "${BASH_SOURCE[4]:-$0}" "${BASH_LINENO[3]}" "$1" >&2
}

# Record a failure. In a shell of its own with `set -e`: that ends at `false` only where bash does not ignore failures.
# When the trap runs, bash may have left the functions, with their variables.
__serried_failed() {
    local words IFS=' '
    # A program in the background that HUP, INT or TERM ended was ended on purpose, such as by `pkill`.
    case $__serried_status in 129|130|143) ! __serried_is_background || __serried_signal=TERM ;; esac
    printf -v words '%q ' "${BASH_SOURCE[2]-}" "${BASH_LINENO[*]:1}" "$@"
    trap - ERR DEBUG RETURN
    trap "__serried_record $__serried_call $__serried_status 0 '${__serried_signal:+1}' $words; exit 0" EXIT
    set -e
    builtin false
    trap "__serried_record $__serried_call $__serried_status 1 '${__serried_signal:+1}' $words; exit 0" EXIT
    exit 0
}
__serried_record() {
    @AGENT@ record-failure @FOLDER@ "$@" >/dev/null 2>&1 </dev/null
}

# A program that a signal ended: as bash reports it.
__serried_report() {
    local name
    case $__serried_status in
        132) name="Illegal instruction" ;;
        134) name=Aborted ;;
        135) name="Bus error" ;;
        136) name="Floating point exception" ;;
        137) name=Killed ;;
        139) name="Segmentation fault" ;;
        *) return 0 ;;
    esac
    printf '%s: line %s: %s   %s\n' "${BASH_SOURCE[4]:-$0}" "${BASH_LINENO[3]}" "$name" "$*" >&2
}

__serried_define() {
    declare -F "$1" >/dev/null || eval "function $1() ${__serried_body//@NAME@/$1}"
}
__serried_body=@BODY@
for __serried_name in @EVERY@; do __serried_define "$__serried_name"; done
unset __serried_name
# Lookups find what they would find without this file.
@LOOKUPS@__serried_looks_up() {
    local IFS=' '
    case " $* " in
        @LOOKED_UP@) return 0 ;;
    esac
    local name
    for name in ${__serried_found[@]+"${__serried_found[@]}"}; do
        [[ " $* " != *" $name "* ]] || return 0
    done
    return 1
}
__serried_is_function() {
    case $1 in
        @WRAPPERS@|@LAUNCHERS@|@REQUEUES@) return 0 ;;
        ''|-*|*[!A-Za-z0-9/._+-]*) return 1 ;;
    esac
    __serried_is_caught "$1"
}
__serried_look_up() {
    if [[ $1 == which ]]; then
        local __serried_path
        __serried_clean
        PATH=$__serried_path __serried_unended builtin command "$@"
    elif [[ $1 == type || ${2-} == -[pvV]* ]] && __serried_looks_up "${@:2}"; then
        ( __serried_hide; builtin "$@" )
    elif [[ $1 == command ]] && builtin type -P -- "${2-}" >/dev/null 2>&1; then
        __serried_unended builtin "$@"
    else
        builtin "$@"
    fi
}
# Without `set -e`: with it, a program after `builtin command` ends the shell also where its failure is handled.
__serried_unended() {
    local status=0
    set +e
    "$@" && status=0 || status=$?
    case $__serried_set in *e*) set -e ;; esac
    return "$status"
}
__serried_hide() {
    local __serried_path
    __serried_clean
    PATH=$__serried_path
    unset -f @NAMES@ ${__serried_found[@]+"${__serried_found[@]}"}
}

declare -A __serried_seen=()
__serried_found=() __serried_path_seen=$PATH
set -T
trap '{ __serried_before "$@" "$_" || :; } 2>/dev/null' DEBUG
fi
{ case $__serried_set in *x*) set -x ;; esac; : "$__serried_last"; } 2>/dev/null
"""

_BODY = r"""{
    { local __serried_set=$-; set +x; } 2>/dev/null
    local __serried_status=0 __serried_call= __serried_signal=
    set +e
    __serried_start @NAME@ "$@"
    [[ $__serried_status == 0 || -z $__serried_call ]] || ( __serried_failed @NAME@ "$@" )
    case $__serried_set in *e*) set -e ;; esac
    case $__serried_set in *x*) { set -x; return "$__serried_status"; } 2>/dev/null ;; esac
    return "$__serried_status"
}"""
"""The function of one program."""

_LOOKUP = r"""declare -F @NAME@ >/dev/null || function @NAME@() {
    { local __serried_set=$- __serried_status=0 __serried_call= __serried_signal=; set +x; } 2>/dev/null
    if [[ @NAME@ == command ]] && __serried_is_function "${1-}"; then
        set +e
        __serried_start "$@"
        [[ $__serried_status == 0 || -z $__serried_call ]] || ( __serried_failed "$@" )
        case $__serried_set in *e*) set -e ;; esac
    else
        __serried_look_up @NAME@ "$@" && __serried_status=0 || __serried_status=$?
    fi
    case $__serried_set in *x*) { set -x; return "$__serried_status"; } 2>/dev/null ;; esac
    return "$__serried_status"
}
"""
