"""Reconstruction attacks: what an adversary rebuilds from what leaked."""

if __name__ != "gradaudit.attacks":
    raise ImportError(
        "this folder is the package gradaudit.attacks: "
        "write `import gradaudit.attacks`, not `import attacks`"
    )
