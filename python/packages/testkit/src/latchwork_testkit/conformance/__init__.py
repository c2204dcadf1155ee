"""The conformance kit: the promises of latchwork's contract as tests, for any backend.

Run it with a URL, or with a launcher of a server that tests may stop:

    pytest --pyargs latchwork_testkit.conformance --backend-url sqlite:////tmp/kit.db
    pytest --pyargs latchwork_testkit.conformance --backend-server latchwork_testkit.servers:EtcdServer

Each sub-package is a level, which can be run alone: ``contract``, ``primitives``, ``faults`` and ``histories``. The run
ends with a table of the promises kept, skipped because of a declared capability, and broken.
docs/how-to/write-a-backend.md shows how to use it.
"""
