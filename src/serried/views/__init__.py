"""The look of output: values of the rooms below come in, and lines, tables, pages and pictures go out.

A text that more than one command or page shows is here; the lines of a single command are in the command's module.

text, console              what a terminal can show; printing on stdout and stderr
plan_lines, run_lines,     the words for a plan, a run and a queue
queue_lines, report_page
run_files                  what live views read between two queries of the schedulers
pictures                   figures by Optuna and matplotlib
watch/, web/               the terminal page and the web page

Nothing here starts a run, changes a file of one, or decides on a text. Textual, starlette and matplotlib are extras:
only `watch/app`, `web/` and functions of `pictures` import them.
"""
