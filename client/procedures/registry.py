"""What a device can be asked to do in a round, by name.

A procedure is a module with two functions of a `bouquet.client.rounds.session.Session`: ``train``, which answers a
train message, and ``evaluate``, which answers an evaluate message. Most methods need only the standard one; that of a
method lies in its own folder, ``strategies/METHOD/device.py``, and is imported when it is asked for.

A method of somebody else's has its own: by a name that an installed package offers (an entry point, see
`bouquet.common.methods`), or as ``package.module``. That is not Bouquet's code, so the device's owner has to allow it.
"""

from __future__ import annotations

import importlib
from collections.abc import Container
from types import ModuleType

from bouquet.common.errors import SAYS_MORE, BouquetError
from bouquet.common.methods import outside_procedure, procedure_modules
from bouquet.common.protocol import STANDARD, ProtocolError, Received
from bouquet.common.protocol.error_replies import OwnerRefusal
from bouquet.common.protocol.names import CHOOSE


def check_measured(module: ModuleType, received: Received) -> None:
    """Raise `OwnerRefusal` where what the device sends would be measured from a model that its data choose.

    What is measured is clipped and noised, and what it is measured from is not: it would tell the choice. A procedure
    that does so says it by a function ``chooses`` of a `Received`.
    """
    chooses = getattr(module, "chooses", None)
    if chooses is not None and chooses(received):
        raise OwnerRefusal(
            f"This device's owner demands noise on all that is made of its data, and in what the server asks for "
            f"({received.procedure}) the model that the device chooses by them would show through it."
        )


def procedure(name: str, allowed: Container[str] | None = ()) -> ModuleType:
    """The module of a procedure.

    ``allowed`` are the procedures, by name or module, that the owner allows beside Bouquet's; None allows all.
    Raises `ProtocolError` for one that this device does not know or may not run, and `BouquetError` for one that
    cannot be imported.
    """
    own = {name: f"bouquet.client.procedures.{name}" for name in (STANDARD, CHOOSE)}
    known = {**own, **procedure_modules()}
    if name in known:
        return importlib.import_module(known[name])
    # What to do comes first: the server takes 300 characters of it.
    asked, knows = f"The server asks for the procedure {name!r}; ", f"This device knows {', '.join(known)}."
    module = outside_procedure(name) if allowed is None or allowed else name
    if allowed is not None and name not in allowed and module not in allowed:
        raise ProtocolError(
            f"{asked}install the same release of Bouquet at both ends; or, if it is of another package, which the "
            f"device's owner trusts, start bouquet client with --allow-procedure {name}. {knows}"
        )
    try:
        found = importlib.import_module(module)
    except Exception as error:  # the module's own code runs, and can fail in any way
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ProtocolError(
                f"{asked}it is neither a name that a package installed here offers by an entry point, nor a module "
                f"here, as package.module. {knows}"
            ) from None
        reason = f"The procedure {name!r}, {module}, cannot be imported: {type(error).__name__}"
        raise BouquetError(f"{reason}: {error}.", public=f"{reason}. {SAYS_MORE}") from error
    if missing := [wanted for wanted in ("train", "evaluate") if not callable(getattr(found, wanted, None))]:
        raise BouquetError(f"The procedure {name!r}, {module}, lacks the function {missing[0]}(session).")
    return found
