"""The code as it was at submit: listed, packed once per content, and not affected by later edits.

    root_of(project)     the git repository that contains it                            listing.py
    survey(project)      which files belong to it, which ignored entries it links       listing.py
    growth(survey, …)    a warning about files that are not code                        listing.py
    redirect(survey, …)  editable installs that point into the project                  editable.py
    read_revision(…)     commit, branch and diff, for the record                        git.py
    store(survey, …)     one tar per content                                            archive.py

Only `store` writes files, so every refusal comes before the first write.
"""

from serried.submission.snapshot.archive import Archive, store
from serried.submission.snapshot.editable import redirect
from serried.submission.snapshot.git import Revision, read_revision
from serried.submission.snapshot.listing import Survey, fits_each, growth, root_of, survey

__all__ = [
    "Archive",
    "Revision",
    "Survey",
    "fits_each",
    "growth",
    "read_revision",
    "redirect",
    "root_of",
    "store",
    "survey",
]
