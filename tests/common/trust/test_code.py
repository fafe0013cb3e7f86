"""The code of an installation, its digest, and its archive."""

import hashlib
import io
import zipfile

from bouquet.common.trust import code
from bouquet.common.trust.code import archive, code_files, digest_of, own_code


def test_the_digest_is_of_every_file_and_name_and_of_the_release(monkeypatch):
    files = code_files()
    monkeypatch.setattr(code, "code_files", lambda: files)
    own = own_code.__wrapped__()
    some = "__init__.py", "client/agent/agent.py", "common/trust/code.py", "server/app.py", "strategies/__init__.py"
    assert {f"bouquet/{name}" for name in some} < set(files)
    assert files["RELEASE"].startswith(b"bouquet-fl ")
    assert digest_of(files) == own
    changed = [
        {**files, "bouquet/client/app.py": files["bouquet/client/app.py"] + b"#"},
        {**files, "RELEASE": b"bouquet-fl 9.9\n"},
        {**files, "sitecustomize.py": b""},
        {name: content for name, content in files.items() if name != "bouquet/client/app.py"},
        {name.replace("bouquet/client/app.py", "bouquet/client/app2.py"): content for name, content in files.items()},
    ]
    assert len({digest_of(one) for one in (files, *changed)}) == 6
    lines = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    assert own == hashlib.sha256(lines.encode()).hexdigest()  # as sha256sum has it


def test_an_archive_is_the_same_for_the_same_files_and_holds_them():
    files = code_files()
    bundle = archive(files)
    assert bundle == archive(dict(reversed(files.items())))
    with zipfile.ZipFile(io.BytesIO(bundle)) as opened:
        assert {name: opened.read(name) for name in opened.namelist()} == files


def test_the_digest_is_that_of_what_was_there_when_the_process_began(monkeypatch):
    before = own_code()
    monkeypatch.setattr(code, "code_files", dict)
    assert own_code() == before
