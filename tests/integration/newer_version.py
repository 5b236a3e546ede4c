"""kmigrate as a future version, which writes a newer schema of the state log's records.

python tests/integration/newer_version.py SCHEMA LEAST_READER WORD…
"""

from __future__ import annotations

import sys
from unittest import mock

from kmigrate.cli.app import main

if __name__ == "__main__":
    schema, least_reader, *words = sys.argv[1:]
    with mock.patch.multiple("kmigrate.state.codec", SCHEMA=int(schema), LEAST_READER=int(least_reader)):
        sys.exit(main(words))
