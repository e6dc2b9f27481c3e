"""Defenses: what is done to a gradient before anybody else can read it."""

if __name__ != "gradaudit.defenses":
    raise ImportError(
        "this folder is the package gradaudit.defenses: "
        "write `import gradaudit.defenses`, not `import defenses`"
    )
