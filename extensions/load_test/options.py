"""Send load to a running server and report what a client measures: `roundhouse bench`."""

import argparse
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.parser import access_of, add_command, add_server_options

if TYPE_CHECKING:
    from app.cli.client import TlsOptions
    from extensions.load_test.command import LoadTestOptions
    from extensions.load_test.connection import Pem, ServerAddress

_MAX_RATE = 100_000
_MAX_CONNECTIONS = 10_000
_MAX_SECONDS = 7 * 86_400
_MAX_COUNT = 10**9
_PROTOCOLS = ("native", "openai-chat", "openai-completions", "openai-embeddings", "v2", "grpc")
_HTTP_URL, _GRPC_URL = "http://127.0.0.1:8080", "127.0.0.1:8080"


def add_bench(commands: Any) -> None:
    """Add `roundhouse bench`."""
    bench = add_command(
        commands,
        "bench",
        "Send load to a running server and measure it.",
        "roundhouse bench --model minilm --concurrency 16 --duration 30\n"
        "  roundhouse bench --model digits --rate 500 --html result.html --json result.json\n"
        "  roundhouse bench --model shapes --images ./photos\n"
        "  roundhouse bench --url http://127.0.0.1:8000 --protocol openai-chat --model llama --rate 2\n"
        "  roundhouse bench --protocol grpc --model digits",
    )
    bench.add_argument("--model", metavar="NAME", help="default: the only model of the server; v2 and grpc need it")
    bench.add_argument(
        "--protocol", choices=_PROTOCOLS, help="default: native, for a Roundhouse server; v2 and grpc: Open Inference"
    )
    _add_load(bench)
    _add_inputs(bench)
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the result as JSON")
    bench.add_argument("--html", type=Path, metavar="FILE", help="write the result as a page with plots")
    url_help = f"address of the server; default: {_HTTP_URL}, with --protocol grpc {_GRPC_URL}"
    add_server_options(bench, None, url_help)
    bench.set_defaults(run=_run)


def _add_load(bench: argparse.ArgumentParser) -> None:
    loop = bench.add_mutually_exclusive_group()
    loop.add_argument(
        "--concurrency",
        type=_count(_MAX_CONNECTIONS),
        metavar="N",
        help="closed loop: N callers, each sends its next request after a response; default: 8",
    )
    loop.add_argument(
        "--rate", type=_number(_MAX_RATE), metavar="N", help="open loop: N requests a second, whatever the server does"
    )
    bench.add_argument(
        "--arrivals", choices=("poisson", "steady"), default="poisson", help="with --rate; default: %(default)s"
    )
    bench.add_argument(
        "--connections",
        type=_count(_MAX_CONNECTIONS),
        default=256,
        metavar="N",
        help="with --rate: maximum connections; default: %(default)s",
    )
    bench.add_argument(
        "--duration", type=_number(_MAX_SECONDS), metavar="S", help="seconds; default: 10, and with --requests none"
    )
    bench.add_argument("--requests", type=_count(_MAX_COUNT), metavar="N", help="end after N requests")
    bench.add_argument(
        "--warmup", type=_number(_MAX_SECONDS, 0), default=0.0, metavar="S", help="seconds before the measurement"
    )
    bench.add_argument(
        "--timeout", type=_number(3600), default=60.0, metavar="S", help="seconds for one request; default: %(default)g"
    )


def _add_inputs(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("--input", type=Path, metavar="FILE", help="JSON Lines: one request body a line")
    bench.add_argument(
        "--images", type=Path, metavar="PATH", help="a JPEG, PNG or WebP file, or a folder of them, as requests"
    )
    bench.add_argument(
        "--binary",
        action=argparse.BooleanOptionalAction,
        help="with --protocol v2: send and receive binary tensors; default: if JSON cannot represent them",
    )
    bench.add_argument(
        "--rows",
        type=_count(4096),
        default=1,
        metavar="N",
        help="texts, images or tensor rows of a request; default: 1",
    )
    bench.add_argument(
        "--length",
        type=_count(1 << 20),
        default=16,
        metavar="N",
        help="size of other free dimensions; default: %(default)s",
    )
    bench.add_argument(
        "--words", type=_words, default=(8, 32), metavar="MIN-MAX", help="words of a text; default: 8-32"
    )
    bench.add_argument(
        "--max-tokens", type=_count(1 << 20), default=32, metavar="N", help="to generate; default: %(default)s"
    )
    bench.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="stream generated text; default: yes",
    )
    bench.add_argument(
        "--distinct", type=_count(4096), default=64, metavar="N", help="different requests; default: %(default)s"
    )
    bench.add_argument("--seed", type=int, default=0, metavar="N", help="of inputs and arrivals; default: %(default)s")


def _count(largest: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if text.isdecimal() and text.isascii() and len(text) < 16 and 1 <= int(text) <= largest:
            return int(text)
        raise argparse.ArgumentTypeError(f'expected an integer from 1 to {largest}, got "{text}"')

    return count


def _number(largest: float, smallest: float = 1e-3) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if smallest <= value <= largest:
            return value
        raise argparse.ArgumentTypeError(f'expected a number from {smallest:g} to {largest:g}, got "{text}"')

    return number


def _words(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    if all(each.isdecimal() and each.isascii() and len(each) < 6 for each in (least, most or least)):
        words = int(least), int(most or least)
        if 1 <= words[0] <= words[1]:
            return words
    raise argparse.ArgumentTypeError(f'expected two numbers like 8-32, got "{text}"')


def _run(options: argparse.Namespace) -> int:
    from extensions.load_test.command import run_command

    try:
        return run_command(_options(options, access_of(options)))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2


def _options(options: argparse.Namespace, access: dict[str, Any]) -> "LoadTestOptions":
    """Raises OSError and ValueError for options that cannot be used."""
    from app.cli.client import credentials
    from extensions.load_test.command import LoadTestOptions
    from extensions.load_test.inputs.tensors import Made
    from extensions.load_test.run import LoadPlan
    from extensions.load_test.target import Wanted

    def headers(method: str, path: str, body: bytes) -> dict[str, str]:
        try:
            return credentials(method, f"http://server{path}", body, access["api_key"], access["is_signed"])
        except ValueError as error:
            raise ValueError(f"--api-key: {error}") from None

    if options.binary is not None and options.protocol != "v2":
        raise ValueError(f"--binary: expected --protocol v2, got {options.protocol or 'native'}; leave out --binary")
    is_open = options.rate is not None
    unlimited = None if options.requests else 10.0
    return LoadTestOptions(
        address=_address(options, access["tls"]),
        credentials=headers,
        is_signed=access["is_signed"],
        wanted=Wanted(options.protocol, options.model, options.binary),
        plan=LoadPlan(
            rate=options.rate,
            concurrency=None if is_open else options.concurrency or 8,
            is_poisson=options.arrivals == "poisson",
            connections=options.connections,
            duration_s=options.duration or unlimited,
            requests=options.requests,
            warmup_s=options.warmup,
            timeout_s=options.timeout,
            seed=options.seed,
        ),
        made=Made(
            options.rows,
            options.length,
            options.words,
            options.max_tokens,
            options.stream,
            options.distinct,
            options.seed,
            _images(options),
        ),
        input_file=options.input,
        json_file=options.json,
        html_file=options.html,
    )


def _images(options: argparse.Namespace) -> tuple[tuple[bytes, str], ...]:
    """Raises OSError, ValueError."""
    from extensions.load_test.inputs.images import read_images

    if options.images is None:
        return ()
    if options.protocol not in (None, "native") or options.input is not None:
        raise ValueError("--images: expected --protocol native and no --input, got others; leave out --images")
    return tuple(read_images(options.images))


def _address(options: argparse.Namespace, tls: "TlsOptions") -> "ServerAddress":
    """Raises OSError for a file of TLS that cannot be used, ValueError."""
    from app.cli.client import tls_context
    from extensions.load_test.connection import address_of

    is_grpc = options.protocol == "grpc"
    url = options.url or (_GRPC_URL if is_grpc else _HTTP_URL)
    if "://" not in url:
        has_tls = tls.authorities is not None or tls.certificate is not None
        url = f"{'https' if has_tls else 'http'}://{url}"
    # The context also for gRPC, whose own messages name no file.
    is_https = url.startswith("https://")
    address = address_of(url, tls_context(tls) if is_https else None, _pem(tls) if is_https and is_grpc else None)
    if is_grpc and address.prefix:
        raise ValueError(f"--url: expected host and port for gRPC, got the path {address.prefix} too; leave it out")
    return address


def _pem(tls: "TlsOptions") -> "Pem":
    from extensions.load_test.connection import Pem

    authorities = tls.authorities or ssl.get_default_verify_paths().cafile
    certificate = None if tls.certificate is None else Path(tls.certificate).read_bytes()
    key = certificate if tls.key is None else Path(tls.key).read_bytes()
    return Pem(None if authorities is None else Path(authorities).read_bytes(), certificate, key)
