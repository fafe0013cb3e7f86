"""Processes below another one."""

from pathlib import Path


def descendants(root):
    """Process ids below ``root``, zombies left out, parents before children."""
    children, zombies = {}, set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The command name stands in parentheses and may itself hold spaces and parentheses.
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(entry.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        if fields[0] in "ZX":
            zombies.add(pid)

    def below(pid):
        for child in children.get(pid, []):
            yield child
            yield from below(child)

    return [pid for pid in below(root) if pid not in zombies]


def is_gone(pid):
    """Whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
