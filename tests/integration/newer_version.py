"""kmigrate as a version whose records of the state log have another format.

python tests/integration/newer_version.py SCHEMA WORD…
"""

from __future__ import annotations

import sys
from unittest import mock

from kmigrate.cli.app import main

if __name__ == "__main__":
    schema, *words = sys.argv[1:]
    with mock.patch("kmigrate.state.codec.SCHEMA", int(schema)):
        sys.exit(main(words))
