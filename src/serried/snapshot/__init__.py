"""The code as it was at submit: listed, packed once per content, and nothing of it changed by later edits.

    root_of(project)     the git repository that it is a part of                        listing.py
    survey(project)      which files belong to it, which ignored entries it links to    listing.py
    redirect(survey, …)  editable installs that point into the project                  editable.py
    read_revision(…)     commit, branch and diff, for the record                        revision.py
    growth(survey, …)    what came along that is hardly code                            size.py
    store(survey, …)     one tar per content                                            archive.py
    Contents             which files of a working tree are still the archive's          contents.py

Only `store` writes anything, so that everything that can be refused is refused before it.
"""

from serried.snapshot.archive import Archive, store
from serried.snapshot.editable import redirect
from serried.snapshot.listing import Survey, root_of, survey
from serried.snapshot.revision import Revision, read_revision
from serried.snapshot.size import fits_each, growth

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
