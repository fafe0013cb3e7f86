"""What a cell of a comparison does in a test: Python code that finds its folder as ``out``."""


def run_code(code, settings, out, resume):
    exec(code, {"out": out, "resume": resume})
