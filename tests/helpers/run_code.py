"""What a cell of a comparison does in a test: Python code that finds its folder as ``out``, and its settings."""


def run_code(code, settings, out):
    exec(code, {"settings": settings, "out": out})
