"""The papers' tables as one suite: published beside measured.

`suite` says what a benchmark is, `contents` lists all of them; the other files are
one family of tables each.
"""

if __name__ != "gradaudit.benchmarks":
    raise ImportError(
        "this folder is the package gradaudit.benchmarks: "
        "write `import gradaudit.benchmarks`, not `import benchmarks`"
    )
