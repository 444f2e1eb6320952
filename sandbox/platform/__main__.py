"""`python -m sandbox.platform serve --state DIR --host 127.0.0.1 --port N [--contract FILE]`"""

import argparse
import logging
from pathlib import Path

import uvicorn

from sandbox.platform.app import create_app
from sandbox.platform.process import DEFAULT_CONTRACT


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sandbox.platform", description="A local GPUaaS platform.")
    commands = parser.add_subparsers(required=True)
    serve = commands.add_parser("serve", help="serve until stopped")
    serve.add_argument("--state", type=Path, required=True, help="directory of database, log and admin token")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, required=True)
    serve.add_argument(
        "--contract",
        type=Path,
        default=DEFAULT_CONTRACT,
        help="OpenAPI file to check calls against",
    )
    given = parser.parse_args()
    if not given.contract.is_file():
        parser.error(f"no contract at {given.contract}; name one with --contract")
    given.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # No access log: the request log has paths and queries, and this file stays small.
    uvicorn.run(
        create_app(given.state, given.contract),
        host=given.host,
        port=given.port,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main()
