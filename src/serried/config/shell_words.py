"""Text in a shell's syntax, read without expansions: commands, files of commands and of variables, and scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serried.base.errors import ConfigError, UsageError, reason

_PIECE = re.compile(
    r"""
      (?P<glue>\\\n)                          # a line continued: nothing at all
    | (?P<space>[\ \t\n]+)
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | \\(?P<escaped>.)
    | (?P<plain>[^\s'"\\]+|[^\S\ \t\n])
    """,
    re.VERBOSE | re.DOTALL,
)
_VARIABLE = r"\$(?:\{\w+\}|[A-Za-z_]\w*)"


def split(text: str) -> tuple[str, ...]:
    """The words of `text`. Raises ValueError for a quote that is never closed.

    Unlike `shlex.split`, joins lines that end in a backslash, and reads backslashes in double quotes as sh does.
    """
    words: list[str] = []
    word: str | None = None
    position = 0
    while position < len(text):
        match = _PIECE.match(text, position)
        if match is None:
            raise ValueError(
                "ends in a lone backslash" if text[position] == "\\" else "has a quote that is never closed"
            )
        position = match.end()
        kind = match.lastgroup or ""
        if kind == "space":
            words += [] if word is None else [word]
            word = None
        elif kind != "glue":
            is_double = kind == "double"
            piece = re.sub(r'\\([$`"\\])|\\\n', lambda each: each[1] or "", match[kind]) if is_double else match[kind]
            word = (word or "") + piece
    return tuple(words) if word is None else (*words, word)


def read_commands(path: Path) -> tuple[tuple[str, ...], ...]:
    """The commands of a file, one per line, as words. Raises ConfigError with the line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {reason(error)}", path=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", path=str(path)) from None
    commands = []
    for number, line in lines(text):
        try:
            commands.append(split(line))
        except ValueError as error:
            raise ConfigError(f"the command {error}", path=str(path), line=number) from None
    if not commands:
        raise ConfigError(
            "contains no command", path=str(path), hint="write one command per line; `#` begins a comment"
        )
    return tuple(commands)


def lines(text: str) -> tuple[tuple[int, str], ...]:
    """The commands in a file of one command a line, each with its line number.

    Blank lines and lines that begin with `#` are skipped; a backslash at a line's end continues it.
    """
    found: list[tuple[int, str]] = []
    pending: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending.append(line)
        if (len(line) - len(line.rstrip("\\"))) % 2 == 0:
            found.append((number - len(pending) + 1, "\n".join(pending)))
            pending = []
    return (*found, *([(number - len(pending) + 1, "\n".join(pending))] if pending else []))


def variables(words: tuple[str, ...]) -> tuple[str, ...]:
    """Variables of a shell in `words`, `$NAME` or `${NAME}`, each once. Empty for a command that is a shell."""
    if words and _SHELL.fullmatch(_base(words[0])):
        return ()
    return tuple(dict.fromkeys(name for word in words for name in re.findall(_VARIABLE, word)))


def operators(words: tuple[str, ...], among: frozenset[str]) -> tuple[str, ...]:
    """Operators of a shell in `words`, each once. Empty for a command that is a shell."""
    if words and _SHELL.fullmatch(_base(words[0])):
        return ()
    return tuple(dict.fromkeys(word for word in words if word in among))


CERTAIN = frozenset({"&&", "||", ">>", "2>&1", "&>"})
"""Words that are hardly ever arguments of a program."""
OPERATORS = CERTAIN | {"|", ";", ">", "<", "&", "2>"}
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_INTERPRETER = r"(?:python|pypy)[\d.]*|bash|sh|Rscript|julia|node"


def experiment_name(words: tuple[str, ...], *, is_shell: bool = False) -> str:
    """The name of an experiment that is only a command: its script, module or program."""
    if not words:
        return ""
    if text := words[0] if is_shell else shell_text(words):
        return _name_of_text(text)
    if len(words) > 2 and words[1] == "-m" and re.fullmatch(_INTERPRETER, _base(words[0])):
        return words[2]
    name = _base(script_of(words) or next((word for word in words if word.endswith(".py")), words[0]))
    return name.rsplit(".", 1)[0] or name or "command"


_BETWEEN = r"&&|\|\||[;|\n]"
_PREPARES = {"cd", "export", "source", ".", "module", "set", "echo", "mkdir", "ulimit", "unset", "test", "[", "exit"}
_PASSES_ON = frozenset({"exec", "time", "nohup", "command"})
_ASSIGNS = r"(?s)[A-Za-z_]\w*=.*"


def shell_text(words: Sequence[str]) -> str | None:
    """The text that a shell reads, `bash -l -c TEXT`; None if the command is not a shell with a text."""
    if not words or not _SHELL.fullmatch(_base(words[0])):
        return None
    for option, text in zip(words[1:], words[2:]):
        if not option.startswith("-"):
            return None
        if re.fullmatch(r"-[a-z]*c", option):
            return text
    return None


def without_prefix(words: Sequence[str]) -> tuple[str, ...]:
    """`words` from the program on: without assignments, `env A=1`, `exec`, `nohup` and so on."""
    rest = tuple(words)
    is_env = False
    while rest:
        word, name = rest[0], _base(rest[0])
        if name == "env" or name in _PASSES_ON:
            is_env = name == "env"
        elif not (re.fullmatch(_ASSIGNS, word) or (is_env and word.startswith("-"))):
            break
        rest = rest[1:]
    return rest


def _name_of_text(text: str) -> str:
    """The name of its first command that does more than prepare: `cd code && A=1 python train.py` is `train`."""
    commands = [without_prefix(part.split()) for part in re.split(_BETWEEN, text)]
    commands = [words for words in commands if words] or [("command",)]
    chosen = next((words for words in commands if words[0].strip("\"'(){}") not in _PREPARES), commands[0])
    return experiment_name(tuple(word.strip("\"'(){}") for word in chosen))


_OPTIONS = (
    (re.compile(r"(?:python|pypy)[\d.]*"), re.compile(r"-[a-zA-Z]*[cm]|-"), ("-W", "-X", "--check-hash-based-pycs")),
    (_SHELL, re.compile(r"-[a-zA-Z]*[cs]|-"), ("-o", "-O", "+o", "+O")),
    (re.compile(r".*"), re.compile(r"-[eEp]|--eval|-"), ()),
)
"""For an interpreter: the options that replace a script (`-c`, `-m`), and those with a value."""


def script_of(words: Sequence[str]) -> str | None:
    """The script of an interpreter, `train.py` of `python -u train.py`, or None."""
    if not words or not re.fullmatch(_INTERPRETER, _base(words[0])):
        return None
    name, rest = _base(words[0]), iter(words[1:])
    without, with_value = next((ends, valued) for kind, ends, valued in _OPTIONS if kind.fullmatch(name))
    for word in rest:
        if without.fullmatch(word):
            return None
        if word in with_value:
            next(rest, None)
        elif not word.startswith("-"):
            return word
    return None


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def given(command: str | Sequence[str]) -> Sequence[str]:
    """A command from Python: words stay as they are, a string is split. Raises UsageError."""
    if not isinstance(command, str):
        return [os.fspath(word) for word in command]
    try:
        return split(command)
    except ValueError as error:
        raise UsageError(f"the command {error}", hint='or pass a list of words: `["python", "train.py"]`') from None


_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=[ \t]*")
_VALUE = re.compile(r"""'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?!['"])(?P<plain>[^\n]*)""", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$", "`": "`"}


def read_env_file(path: Path) -> dict[str, str]:
    """The names and values of a `.env` file: see `parse_env`. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("this is not UTF-8 text", path=str(path)) from error
    except OSError as error:
        hint = "paths are relative to the project's folder"
        raise ConfigError(f"cannot read the env_file: {error.strerror}", hint=hint, path=str(path)) from error
    return parse_env(text, str(path))


def parse_env(text: str, path: str) -> dict[str, str]:
    r"""Parse lines `NAME=value`, with `export`, comments, and quotes as in a shell.

    'single' quotes keep every character, "double" quotes read \n, \t, \r, \", \\ and \$. Both may span lines. `$NAME`
    is not expanded. Raises ConfigError with the line.
    """
    values: dict[str, str] = {}
    position = 0
    text = text.replace("\r\n", "\n").removeprefix("\ufeff")
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end].strip()
        if not line or line.startswith("#"):
            position = end + 1
            continue
        number = text.count("\n", 0, position) + 1
        match = _ASSIGNMENT.match(text, position)
        if match is None or match.end() > end:
            raise ConfigError("this is not `NAME=value`", path=path, line=number)
        values[match[1]], position = _env_value(text, match.end(), path, number)
    return values


def _env_value(text: str, position: int, path: str, number: int) -> tuple[str, int]:
    """The value that starts at `position`, and the start of the next line."""
    match = _VALUE.match(text, position)
    end = text.find("\n", match.end()) if match else -1
    end = len(text) if end < 0 else end
    if match and match["plain"] is not None:
        return re.split(r"(?:^|\s)#", match["plain"], maxsplit=1)[0].strip(), end + 1
    rest = text[match.end() : end].strip() if match else ""
    if match is None or (rest and not rest.startswith("#")):
        raise ConfigError("the quotes of this value do not end", path=path, line=number)
    if match["single"] is not None:
        return match["single"], end + 1
    return re.sub(r'\\([ntr"\\$`])', lambda each: _ESCAPES[each[1]], match["double"]), end + 1


@dataclass(eq=False)
class Command:
    """A simple command, or a block: a compound command or a function."""

    start: int
    """Where it begins in the text."""
    end: int
    """Behind its last word, redirection, here-document or closing keyword."""
    before: str
    """The operator in front, a line break at the beginning."""
    around: Command | None
    """The block that contains it."""
    branch: int
    """The part of that block, counted by `then`, `do`, `else` and patterns of `case`. 0 is the condition."""
    kind: str = ""
    """The keyword of a block: `if`, `for`, `while`, `until`, `select`, `case`, `{` or `(`; empty if simple."""
    name: str = ""
    """Of a function."""
    words: list[str] = field(default_factory=list)
    """As written, without redirections; of a `for`, `select` or `case`, those of its first line."""
    places: list[int] = field(default_factory=list)
    """Where each word begins."""
    after: str = "\n"
    """The operator that ends it, a line break at the end."""
    branches: int = 0
    conditions: set[int] = field(default_factory=lambda: {0})
    """Its branches that are conditions."""


_OPERATOR = re.compile(r"\n|;;&|;;|;&|;|&&|\|\||\|&|\||&(?!>)|[()]")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<>|>&|<&|>>|>\||[<>](?!\())|&>>?")
_SPACE = re.compile(r"(?:[ \t\r\f\v]|\\\n)+")
_BLANK = re.compile(rf"{_SPACE.pattern}|#[^\n]*")
_TEST = re.compile(r"\[\[[ \t](?:[^\n]|\\\n){0,1000}?[ \t]\]\](?![^\s;&|)])|\(\((?:[^\n]|\\\n){0,1000}?\)\)")
"""`[[ … ]]` and `(( … ))` in one line: operators in them are not those of the shell."""
_QUOTED = re.compile(r"'[^']*'?|\$'(?:[^'\\]|\\.)*'?", re.DOTALL)
_CLOSERS = {"$((": "))", "$(": ")", "${": "}", "`": "`", '"': '"', "<(": ")", ">(": ")"}
_IN_QUOTES = {opener: closer for opener, closer in _CLOSERS.items() if opener[0] in "$`"}
_CLOSES = {"fi": ("if",), "done": ("for", "while", "until", "select"), "esac": ("case",), "}": ("{",), ")": ("(",)}
_CONDITIONAL = frozenset({"if", "while", "until"})
_HEADED = frozenset({"for", "select", "case"})
_PREFIXES = frozenset({"!", "time", "coproc"})
_NEXT_BRANCH = frozenset({"then", "do", "else", "elif"})
_NO_PARENTHESES = re.compile(r"\(\s{0,80}\)")


def word_end(text: str, start: int) -> int:
    """The position behind the word that begins at `start`, with its quotes and substitutions."""
    closers: list[str] = []
    at = start
    while at < len(text):
        char, closer = text[at], closers[-1] if closers else ""
        if char == "\\":
            at += 2
        elif closer and text.startswith(closer, at):
            closers.pop()
            at += len(closer)
        elif closer != '"' and (quoted := _QUOTED.match(text, at)):
            at = quoted.end()
        elif opener := next((it for it in (_IN_QUOTES if closer == '"' else _CLOSERS) if text.startswith(it, at)), ""):
            closers.append(_CLOSERS[opener])
            at += len(opener)
        elif char == "(" and (closer in (")", "))") or (not closer and at > start and text[at - 1] in "=@?*+!")):
            closers.append(")")
            at += 1
        elif not closer and char in " \t\n\r\f\v;&|<>()":
            break
        else:
            at += 1
    return min(at, len(text))


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.found: list[Command] = []
        self.block: Command | None = None
        self.now: Command | None = None
        """The command that is being read; a block behind its closing keyword takes redirections and an operator."""
        self.before = "\n"
        self.prefix = -1
        """Where `!`, `time` or a function's name in front of the next command begins."""
        self.function = ""
        self.documents: list[tuple[str, Command | None]] = []
        self.in_pattern = False
        """Of `case`."""

    def read(self) -> list[Command]:
        at = 0
        while at < len(self.text):
            is_first = not self.in_pattern and (self.now is None or (self.now is self.block and not self.now.words))
            if blank := _BLANK.match(self.text, at):
                at = blank.end()
            elif redirection := _REDIRECTION.match(self.text, at):
                at = self._redirect(redirection[0], at, redirection.end())
            elif is_first and (test := _TEST.match(self.text, at)):
                at = self._word(at, test.end())
            elif operator := _OPERATOR.match(self.text, at):
                at = self._operator(operator[0], at, operator.end())
            else:
                at = self._word(at, max(at + 1, word_end(self.text, at)))
        return self.found

    def _new(self, start: int, kind: str = "") -> Command:
        start, self.prefix = (self.prefix if self.prefix >= 0 else start), -1
        made = Command(start, start, self.before, self.block, self.block.branches if self.block else 0, kind)
        self.found.append(made)
        return made

    def _redirect(self, operator: str, start: int, at: int) -> int:
        self.now = self.now or self._new(start)
        if blank := _SPACE.match(self.text, at):
            at = blank.end()
        self.now.end = word_end(self.text, at)
        if operator.lstrip("0123456789") in ("<<", "<<-"):
            self.documents.append((re.sub(r"['\"\\]", "", self.text[at : self.now.end]), self.now))
        return self.now.end

    def _operator(self, operator: str, start: int, end: int) -> int:
        if self.in_pattern:
            if operator == ")" and self.block:
                self.block.branches += 1
                self.in_pattern, self.before = False, ";"
        elif operator == "(":
            empty = _NO_PARENTHESES.match(self.text, start)
            if self.now and len(self.now.words) == 1 and not self.now.kind and empty:
                self.function, self.prefix = self.now.words[0], self.now.start
                self.found.pop()
                self.now = None
            elif self.now is None and not (self.function and empty):
                self._open("(", start)
                return end
            return empty.end() if empty else end
        elif operator == ")":
            self._end(";")
            self._close(")", end)
        else:
            self._end(operator)
            if operator.startswith(";") and operator != ";":
                self.in_pattern = self.block is not None and self.block.kind == "case"
        return self._skip_documents(end) if operator == "\n" else end

    def _skip_documents(self, at: int) -> int:
        for word, command in self.documents:
            last = re.compile(rf"^[ \t]*{re.escape(word)}[ \t\r]*$", re.MULTILINE).search(self.text, at)
            at = last.end() if last else len(self.text)
            if command:
                command.end = at
        self.documents.clear()
        return at

    def _end(self, operator: str) -> None:
        if self.now is not None:
            if self.now is self.block:
                operator = ";"
            else:
                self.now.after = operator
            self.now, self.before, self.prefix = None, operator, -1

    def _open(self, kind: str, start: int) -> None:
        block = self._new(start, kind)
        block.name, self.function = self.function, ""
        block.conditions = {0} if kind in _CONDITIONAL | _HEADED else set()
        self.block, self.now, self.before = block, block if kind in _HEADED else None, ";"

    def _close(self, keyword: str, end: int) -> None:
        block = self.block
        if block is not None and block.kind in _CLOSES[keyword]:
            block.end = end
            self.block, self.now, self.in_pattern = block.around, block, False

    def _word(self, start: int, end: int) -> int:
        word = self.text[start:end]
        if self.in_pattern:
            if word == "esac":
                self._close(word, end)
            return end
        if self.now and self.now.kind and self.now is not self.block:  # `(a) then`
            self._end(";")
        if self.now is None and self._is_keyword(word, start, end):
            return end
        self.now = self.now or self._new(start)
        self.now.words.append(word)
        self.now.places.append(start)
        self.now.end = end
        if word == "in" and self.now.kind == "case" and len(self.now.words) > 1:
            self.now, self.in_pattern = None, True
        return end

    def _is_keyword(self, word: str, start: int, end: int) -> bool:
        if self.function == "function":
            self.function = word
        elif word == "function":
            self.function, self.prefix = word, start
        elif word in _PREFIXES:
            self.prefix = start if self.prefix < 0 else self.prefix
        elif word == "{" or word in _CONDITIONAL | _HEADED:
            self._open(word, start)
        elif word in _NEXT_BRANCH:
            if self.block:
                self.block.branches += 1
                self.block.conditions |= {self.block.branches} if word == "elif" else set()
            self.before = ";"
        elif word in _CLOSES:
            self._close(word, end)
        else:
            return False
        return True


def commands(text: str) -> list[Command]:
    return _Reader(text).read()


def plain(word: str) -> str:
    try:
        return " ".join(split(word))
    except ValueError:
        return word


_ENDS = frozenset({"exit", "return", "exec"})


def certain(text: str) -> tuple[tuple[str, ...], ...]:
    """The commands that `text` runs unless an earlier one fails, without quotes. Empty if it has blocks."""
    found: list[tuple[str, ...]] = []
    is_certain = True
    for command in commands(text):
        words = tuple(map(plain, command.words))
        if command.kind or command.after in (")", ";;"):
            return ()
        program = words[0] if words else ""
        is_list = command.before in ("&&", "||", "|", "|&")
        is_certain = (not is_list or (is_certain and command.before != "||")) and program not in ("[", "test")
        if is_certain and program:
            found.append(words)
        if program in _ENDS:
            break
    return tuple(found)
