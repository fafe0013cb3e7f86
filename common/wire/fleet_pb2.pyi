from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeviceFrame(_message.Message):
    __slots__ = ("hello", "reply", "chunk", "credit", "not_now", "pong", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    NOT_NOW_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    reply: Reply
    chunk: Chunk
    credit: Credit
    not_now: NotNow
    pong: Pong
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., not_now: _Optional[_Union[NotNow, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("welcome", "refused", "run", "task", "chunk", "credit", "received", "cancel", "notice", "certificate", "ping", "goodbye")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refused: Refused
    run: Run
    task: Task
    chunk: Chunk
    credit: Credit
    received: Received
    cancel: Cancel
    notice: Notice
    certificate: Certificate
    ping: Ping
    goodbye: Goodbye
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., received: _Optional[_Union[Received, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., certificate: _Optional[_Union[Certificate, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("major", "minor", "release", "session", "code", "tags", "holds", "probe")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    release: str
    session: bytes
    code: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    holds: _containers.RepeatedScalarFieldContainer[str]
    probe: bool
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ..., release: _Optional[str] = ..., session: _Optional[bytes] = ..., code: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ..., holds: _Optional[_Iterable[str]] = ..., probe: bool = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("major", "minor", "release", "inline_bytes", "node")
    MAJOR_FIELD_NUMBER: _ClassVar[int]
    MINOR_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    INLINE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    major: int
    minor: int
    release: str
    inline_bytes: int
    node: int
    def __init__(self, major: _Optional[int] = ..., minor: _Optional[int] = ..., release: _Optional[str] = ..., inline_bytes: _Optional[int] = ..., node: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("code", "text")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Refused.Code]
        NOT_REGISTERED: _ClassVar[Refused.Code]
        IN_USE: _ClassVar[Refused.Code]
        VERSION: _ClassVar[Refused.Code]
        FULL: _ClassVar[Refused.Code]
        MALFORMED: _ClassVar[Refused.Code]
    UNKNOWN: Refused.Code
    NOT_REGISTERED: Refused.Code
    IN_USE: Refused.Code
    VERSION: Refused.Code
    FULL: Refused.Code
    MALFORMED: Refused.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: Refused.Code
    text: str
    def __init__(self, code: _Optional[_Union[Refused.Code, str]] = ..., text: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("id", "settings", "code", "signature", "release", "bundle")
    ID_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    id: int
    settings: str
    code: str
    signature: bytes
    release: str
    bundle: Content
    def __init__(self, id: _Optional[int] = ..., settings: _Optional[str] = ..., code: _Optional[str] = ..., signature: _Optional[bytes] = ..., release: _Optional[str] = ..., bundle: _Optional[_Union[Content, _Mapping]] = ...) -> None: ...

class Content(_message.Message):
    __slots__ = ("size", "sha256", "data")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    size: int
    sha256: bytes
    data: bytes
    def __init__(self, size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "run", "type", "group", "seconds", "content")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    run: int
    type: str
    group: str
    seconds: float
    content: Content
    def __init__(self, id: _Optional[str] = ..., run: _Optional[int] = ..., type: _Optional[str] = ..., group: _Optional[str] = ..., seconds: _Optional[float] = ..., content: _Optional[_Union[Content, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("id", "content", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    content: Content
    error: Error
    def __init__(self, id: _Optional[str] = ..., content: _Optional[_Union[Content, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("id", "offset", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    offset: int
    data: bytes
    def __init__(self, id: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("id", "offset", "end")
    ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    id: str
    offset: int
    end: int
    def __init__(self, id: _Optional[str] = ..., offset: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class NotNow(_message.Message):
    __slots__ = ("id", "reason", "seconds")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    seconds: float
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Received(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("pem",)
    PEM_FIELD_NUMBER: _ClassVar[int]
    pem: bytes
    def __init__(self, pem: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pong(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...
