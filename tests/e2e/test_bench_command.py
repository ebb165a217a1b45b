"""`roundhouse bench` against a real server: tensors, texts and generation over each protocol."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.commands import main
from tests.e2e.server import RunningServer
from tests.e2e.tls_server import tls_serving
from tests.support.certificates import Authority
from tests.support.keyring import make_key, write_keys

COUNT = 12


def measured(server: RunningServer, folder: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
    """Run the command and return its result."""
    file = folder / "result.json"
    words = ["bench", "--url", server.url, "--requests", str(COUNT), "--json", str(file), *arguments]
    assert main(words) == status
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["--model", "digits", "--concurrency", "3"], "/models/digits/infer"),
        (["--model", "minilm", "--rate", "200", "--rows", "2"], "/models/minilm/infer"),
        (["--model", "digits", "--protocol", "v2", "--rows", "2"], "/v2/models/digits/infer"),
        (["--model", "minilm", "--protocol", "v2"], "/v2/models/minilm/infer"),
        (["--model", "minilm", "--protocol", "v2", "--binary"], "/v2/models/minilm/infer"),
        (["--model", "float16", "--protocol", "v2"], "/v2/models/float16/infer"),
        (["--model", "bfloat16", "--protocol", "v2"], "/v2/models/bfloat16/infer"),
        (["--model", "tiny-llama", "--protocol", "v2", "--max-tokens", "2"], "/v2/models/tiny-llama/infer"),
        (["--model", "minilm", "--protocol", "openai-embeddings", "--rate", "100"], "/v1/embeddings"),
    ],
)
def test_tensors_and_texts_are_measured(server: RunningServer, tmp_path: Path, arguments: list[str], path: str) -> None:
    found = measured(server, tmp_path, *arguments)
    assert found["target"]["path"] == path
    assert (found["requests"]["sent"], found["requests"]["succeeded"]) == (COUNT, COUNT)
    is_binary = "--binary" in arguments or path.endswith("float16/infer")
    assert found["target"]["encoding"] == ("binary" if is_binary else "json")
    latency = found["latency_ms"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["max"]
    assert set(found["server_timing_ms"]) == {"decode", "queue", "compute", "encode"}
    # The server's own time is a part of that of the client.
    assert found["server_timing_ms"]["compute"]["mean"] <= latency["mean"]
    assert sum(each["count"] for each in found["latency_histogram"]) == COUNT
    assert sum(each["succeeded"] for each in found["course"]) == COUNT


def measured_over_grpc(server: RunningServer, folder: Path, *arguments: str) -> dict[str, Any]:
    address = ["--protocol", "grpc", "--url", f"127.0.0.1:{server.grpc_port}"]
    return measured(server, folder, *address, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "digits", "--concurrency", "3", "--rows", "2"],
        ["--model", "minilm", "--rate", "100"],
        ["--model", "bfloat16"],
        ["--model", "tiny-llama", "--max-tokens", "2", "--no-stream"],
    ],
)
def test_grpc_calls_are_measured(server: RunningServer, tmp_path: Path, arguments: list[str]) -> None:
    found = measured_over_grpc(server, tmp_path, *arguments)
    assert (found["requests"]["sent"], found["requests"]["succeeded"]) == (COUNT, COUNT)
    assert found["target"]["path"] == "/inference.GRPCInferenceService/ModelInfer"
    assert found["target"]["encoding"] == "protobuf"


def test_grpc_stream_has_first_token(server: RunningServer, tmp_path: Path) -> None:
    found = measured_over_grpc(server, tmp_path, "--model", "tiny-llama", "--max-tokens", "4", "--words", "3")
    assert found["requests"]["succeeded"] == COUNT
    assert COUNT <= found["tokens"]["generated"] <= COUNT * 4
    assert found["time_to_first_token_ms"]["max"] <= found["latency_ms"]["max"]


def test_grpc_refusals_have_status_codes(server: RunningServer, tmp_path: Path) -> None:
    bodies = tmp_path / "bodies.jsonl"
    good = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    bodies.write_text("\n".join(json.dumps({"inputs": [good | {"name": name}]}) for name in ("x", "typo")), "utf-8")
    found = measured_over_grpc(server, tmp_path, "--model", "float32", "--input", str(bodies))
    (failure,) = found["failures"]
    assert (failure["status"], failure["code"], failure["count"]) == (3, "INVALID_ARGUMENT", COUNT // 2)
    assert "typo" in failure["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "digitz"], "got NOT_FOUND model"),
        ([], "--model: expected the name"),
        (["--model", "digits", "--url", "127.0.0.1:1"], "--url: expected a gRPC server at 127.0.0.1:1"),
    ],
)
def test_grpc_model_is_refused_before_run(
    server: RunningServer, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--protocol", "grpc", "--url", f"127.0.0.1:{server.grpc_port}", *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--protocol", "openai-chat"],
        ["--protocol", "openai-completions"],
        ["--protocol", "openai-completions", "--no-stream"],
    ],
)
def test_generation_reports_tokens(server: RunningServer, tmp_path: Path, arguments: list[str]) -> None:
    found = measured(server, tmp_path, "--model", "tiny-llama", "--max-tokens", "4", "--words", "3", *arguments)
    assert found["requests"]["succeeded"] == COUNT
    assert COUNT <= found["tokens"]["generated"] <= COUNT * 4
    is_streamed = "--no-stream" not in arguments
    assert (found["time_to_first_token_ms"] is not None) == is_streamed
    if is_streamed:
        assert found["time_to_first_token_ms"]["max"] <= found["latency_ms"]["max"]


def test_bodies_of_file_and_page(server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = tmp_path / "bodies.jsonl"
    bodies.write_text('{"text": ["a", "b"]}\n{"text": 5}\n', encoding="utf-8")
    page = tmp_path / "result.html"
    found = measured(server, tmp_path, "--model", "minilm", "--input", str(bodies), "--html", str(page))
    (failure,) = found["failures"]
    assert (failure["status"], failure["code"], failure["count"]) == (400, "invalid_input", COUNT // 2)
    assert failure["message"].startswith("text: expected")
    assert "6 of 12 requests failed." in found["warnings"]
    printed = capsys.readouterr()
    assert "400 invalid_input: text: expected" in printed.out
    assert "warning: 6 of 12 requests failed." in printed.err
    assert page.read_text(encoding="utf-8").count("<svg") == 3


def test_run_without_success_exits_with_1(server: RunningServer, tmp_path: Path) -> None:
    arguments = ["--model", "absent", "--protocol", "openai-embeddings"]
    found = measured(server, tmp_path, *arguments, status=1)
    assert [(each["status"], each["code"]) for each in found["failures"]] == [(404, "model_not_found")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "digitz"], "--model: expected a description at"),
        ([], "--model: expected one of "),
        (["--model", "map-in"], "--input FILE"),
        (["--protocol", "v2"], "--model: expected the name"),
    ],
)
def test_model_is_refused_before_the_run(
    server: RunningServer, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--url", server.url, *arguments]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "ftp://h"],
        ["--json", "absent-folder/x"],
        ["--html", "."],
        ["--cacert", "absent", "--url", "https://h"],
        ["--binary"],
        ["--no-binary", "--protocol", "openai-chat"],
        ["--binary", "--protocol", "grpc"],
        ["--protocol", "grpc", "--url", "http://h:1/path"],
        ["--protocol", "grpc", "--url", "h:1", "--cacert", "absent"],
    ],
)
def test_wrong_option_exits_with_2(arguments: list[str]) -> None:
    assert main(["bench", *arguments]) == 2


@pytest.mark.parametrize("arguments", [["--rate", "0"], ["--rate", "nan"], ["--concurrency", "0"], ["--words", "5-3"]])
def test_wrong_number_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", *arguments])
    assert ended.value.code == 2


def test_no_server_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", "http://127.0.0.1:1"]) == 1
    assert "--url: expected a server at 127.0.0.1:1/models" in capsys.readouterr().err


@pytest.mark.extended
def test_credentials_and_certificates_are_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, signed, clients = make_key("default"), make_key("default", is_signed=True), Authority()
    write_keys(tmp_path / "keys.toml", plain, signed)
    with tls_serving(tmp_path, clients, '[auth]\nmode = "required"\n') as tls:
        tls.server.wait_for_log("model ready")
        (tmp_path / "ca.pem").write_bytes(tls.authority.pem)
        certificate, key = clients.issue("bench").write(tmp_path, "bench")
        own = ["--cacert", str(tmp_path / "ca.pem"), "--cert", str(certificate), "--cert-key", str(key)]
        words = ["bench", "--url", tls.url, "--requests", "6", *own]
        assert main([*words, "--api-key", plain.text]) == 0
        assert main([*words, "--api-key", signed.text, "--sign"]) == 0
        address = f"localhost:{tls.server.grpc_port}"
        over_grpc = ["bench", "--protocol", "grpc", "--url", address, "--requests", "6", "--model", "echo", *own]
        assert main([*over_grpc, "--api-key", plain.text]) == 0
        assert main([*over_grpc, "--api-key", signed.text, "--sign"]) == 0
        assert capsys.readouterr().out.count("6 succeeded  0 failed") == 4
        for command in (over_grpc, words):
            assert main(command) == 1
            printed = capsys.readouterr().err
            assert printed.startswith('--api-key: expected "')
            assert "ROUNDHOUSE_API_KEY" in printed
        assert main([*words, "--api-key", "rh_x", "--sign"]) == 2
        capsys.readouterr()
        without_certificate = ["--cacert", str(tmp_path / "ca.pem"), "--api-key", plain.text]
        for command in (words[:5], ["models", "--url", tls.url]):
            assert main([*command, *without_certificate]) == 1
            assert "got a demand for a certificate of the client; name yours with --cert" in capsys.readouterr().err


def test_interrupt_before_run_exits_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from extensions.load_test import command

    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "find_target", interrupted)
    assert main(["bench"]) == 130
    assert capsys.readouterr().err == ""


def test_unwritable_result_keeps_other_file(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "result.html"
    words = ["bench", "--url", server.url, "--model", "digits", "--requests", "2", "--html", str(page)]
    assert main([*words, "--json", "/dev/full"]) == 1
    assert "--json: expected a file that can be written, got /dev/full: No space left" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8").count("<svg") == 3
