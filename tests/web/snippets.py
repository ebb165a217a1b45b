"""Run the requests that the playground shows as code."""

import contextlib
import io
import subprocess
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect


def shown(page: Page, language: str) -> str:
    """Choose a language and return its snippet."""
    page.get_by_role("group", name="Language").get_by_role("button", name=language, exact=True).click()
    block = page.get_by_label(f"Request with {language}", exact=True)
    expect(block).to_be_visible()
    return block.inner_text()


def run_shell(text: str, folder: Path, **environ: str) -> str:
    """Paste a text into a shell; return what it printed."""
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", **environ}
    done = subprocess.run(
        ["sh", "-c", text], cwd=folder, env=variables, capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout


def run_python(text: str) -> str:
    """Run a program in this process, which has imported the clients; return what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "snippet", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def run_javascript(page: Page, text: str, key: str = "") -> list[Any]:
    """Run a module's text in the page, which has fetch as Node.js has it; return what it wrote to the console."""
    script = f"""async (key) => {{
        const written = [];
        const console = {{ log: (value) => written.push(value) }};
        const process = {{ env: {{ ROUNDHOUSE_KEY: key }} }};
        {text}
        return written;
    }}"""
    written: list[Any] = page.evaluate(script, key)
    return written
