"""A run of devices whose own data are two classes of four values, as the fixture `own_data` writes them."""


def settings_of(name: str, rounds: int, *, hidden: int = 4, strategy: str = "fedavg", more: str = "") -> str:
    """The settings of such a run, as TOML, with ``more`` sections at the end."""
    return f"""
[run]
name = "{name}"
rounds = {rounds}

[data]
dataset = "own"
classes = ["down", "up"]
input_shape = [1, 2, 2]

[model]
name = "mlp"
hidden = [{hidden}]

[strategy]
name = "{strategy}"
{more}"""
