"""What the server of the tests says, for those who look whether it arrives, without the SDK's parts for servers."""

import base64

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\nnot picture!").decode()
SOUND = base64.b64encode(b"abc").decode()
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "enum": ["a", "b"], "description": "one of two"},
        "n": {"$ref": "#/$defs/n"},
    },
    "$defs": {"n": {"type": "integer", "minimum": 1}},
    "additionalProperties": True,
}
LONG = "long_" * 20
