"""Test which models a principal finds, and that errors name no others."""

import asyncio
from typing import Any

import pytest

from app.auth.errors import Forbidden
from app.auth.principal import ANONYMOUS, UNAUTHENTICATED, Principal
from app.inference.contract import NamedRequest
from app.inference.model_view import ManagedModelView, ModelView
from frameworks.core.errors import ModelNotFound, Overloaded
from frameworks.core.tenants import Tenant
from frameworks.manager import MLFrameworkManager
from frameworks.models.versions.traffic import Share
from frameworks.scheduling.admission import RequestLimit
from tests.app.inference.contexts import Context
from tests.support.batch_models import FakeRegistry
from tests.support.loops import in_loop, soon, task
from tests.support.managing import entry, make_manager, register

RED = Principal(Tenant("red"), patterns=[("red-*",)])
BLUE = Principal(Tenant("blue"), patterns=[("blue-*",)])


def manager_of(*names: str, **settings: Any) -> MLFrameworkManager:
    manager = make_manager(FakeRegistry())
    for name in names:
        register(manager, name, **settings)
    return manager


def message_of(view: ModelView, name: str) -> str:
    with pytest.raises(ModelNotFound) as raised:
        view.slot(name)
    return raised.value.message


@in_loop
async def test_view_has_only_models_of_patterns() -> None:
    manager = manager_of("red-a", "blue-a", "red-b")
    for principal, expected in (
        (ANONYMOUS, ["red-a", "blue-a", "red-b"]), (RED, ["red-a", "red-b"]), (BLUE, ["blue-a"]), (UNAUTHENTICATED, []),
    ):  # fmt: skip
        view = ModelView(manager, principal)
        assert [slot.name for slot in view.slots] == expected
        assert [name for name in ("red-a", "blue-a", "red-b", "red-c") if view.get(name) is not None] == sorted(
            expected, key=["red-a", "blue-a", "red-b"].index
        )


@in_loop
async def test_hidden_model_has_error_of_absent_one() -> None:
    for name in ("red-a", "blue", "blue-ab", ""):
        with_red, without = manager_of("red-a", "red-ab", "blue-a"), manager_of("blue-a")
        assert message_of(ModelView(with_red, BLUE), name) == message_of(ModelView(without, BLUE), name)
    assert message_of(ModelView(with_red, UNAUTHENTICATED), "red-a").endswith("no model is registered")


@in_loop
async def test_commands_to_hidden_models_are_refused() -> None:
    async with make_manager(FakeRegistry()) as manager:
        register(manager, "red-a")
        await manager.load("red-a")
        view = ManagedModelView(manager, BLUE)
        for command in (
            view.load("red-a"), view.load("red-a", "1"), view.unload("red-a"), view.rollback("red-a"),
            view.split("red-a", "canary", Share("2", 5)), view.remove("red-a"),
        ):  # fmt: skip
            with pytest.raises(ModelNotFound, match="no model is registered"):
                await command
        assert manager.slot("red-a").active.is_ready
        assert manager.slot("red-a").loads == 1


@in_loop
async def test_error_of_deleted_model_names_no_hidden_one() -> None:
    async with make_manager(FakeRegistry()) as manager:
        for name in ("red-a", "blue-a", "blue-b"):
            register(manager, name)
        async with manager.slot("blue-a").lock:
            waiting = task(ManagedModelView(manager, BLUE).load("blue-a"))
            await asyncio.sleep(0)
            del manager._slots["blue-a"]
        await soon(waiting.done)
        error = waiting.exception()
        assert isinstance(error, ModelNotFound)
        assert "blue-b" in error.message
        assert "red-a" not in error.message


@in_loop
async def test_names_outside_patterns_cannot_be_registered() -> None:
    manager = manager_of("red-a")
    ManagedModelView(manager, RED).check_may_register(entry("red-new", aliases=("red-newer",)))
    for name in ("red-a", "red-new"):
        with pytest.raises(Forbidden, match="name: expected a name that the patterns"):
            ManagedModelView(manager, BLUE).check_may_register(entry(name))
    with pytest.raises(Forbidden, match=r"aliases\[1\]: expected a name .* allow, got \"blue-a\""):
        ManagedModelView(manager, RED).check_may_register(entry("red-new", aliases=("red-newer", "blue-a")))


@in_loop
async def test_alias_gives_no_access() -> None:
    manager = manager_of("red-a", aliases=("blue-alias", "red-alias"))
    red, blue = ModelView(manager, RED), ModelView(manager, BLUE)
    assert {red.get(name) for name in ("red-a", "red-alias", "blue-alias")} == {manager.slot("red-a")}
    assert [blue.get(name) for name in ("red-a", "red-alias", "blue-alias")] == [None] * 3
    assert [blue.may_use(name) for name in ("blue-alias", "blue-absent")] == [False, True]
    assert message_of(blue, "blue-alia").endswith("no model is registered")
    assert message_of(red, "Red-Alias").endswith('did you mean "red-alias"?')
    with pytest.raises(ModelNotFound):
        Context(manager, BLUE).check_available("blue-alias", None)


@in_loop
async def test_record_has_alias_and_adapter() -> None:
    manager = manager_of("org/red", aliases=("short", "gpt/4o"), load="lazy")
    for name, noted in (
        ("org/red", ("org/red", "", "")), ("short", ("org/red", "short", "")), ("gpt/4o:a", ("org/red", "gpt/4o", "a")),
        ("org/red:a", ("org/red", "", "a")),
    ):  # fmt: skip
        context = Context(manager)
        context.check_available(name, None)
        assert (context.model, context.alias, context.adapter) == noted
        assert context.answered_name == name


@in_loop
async def test_full_hidden_model_refuses_as_absent() -> None:
    manager = manager_of("red-a", max_concurrent_requests=1)
    limit = RequestLimit("the server", None, None)
    manager.slot("red-a").requests.acquire()

    with pytest.raises(Overloaded):
        Context(manager, RED, limit).check_queue_of("red-a")
    Context(manager, BLUE, limit).check_queue_of("red-a")
    for name in ("red-a", "red-absent"):
        blue = Context(manager, BLUE, limit)
        with pytest.raises(ModelNotFound):
            blue.check_available(name, None)
        with pytest.raises(ModelNotFound):
            blue.route(NamedRequest(name, None, lambda spec: spec))
        assert (blue.model, blue.version) == ("", "")
