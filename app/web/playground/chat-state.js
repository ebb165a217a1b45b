// The state of a chat: its conversation, its options, the texts that are generated, and what the browser keeps of them.
import { useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { boundsOf } from "./chat-pictures.js";
import { useTexts } from "./columns.js";
import { asks, countPictures, messagesOf, sendablePictures } from "./conversation.js";
import { newId, openId, setOpenId } from "./conversation-store.js";
import { CHAT_OPTIONS, changedValues, limitOf, optionsOf, readOptions, usageOf, valuesOf } from "./generation-options.js";
import { useKept } from "./kept-conversations.js";

const PATH = "v1/chat/completions";
export const FIRST = "left";
const SECOND = "right";

/**
 * The conversation with a model, and what a person does to it.
 *
 * `contextOf`: of contextsOf. `visionOf`: of visionsOf. `models`: all of the server, to compare with one.
 */
export function useChat(name, contextOf, visionOf, models) {
  const options = useMemo(() => optionsOf(CHAT_OPTIONS, contextOf(name)), [contextOf(name)]);
  const kept = useKept(name);
  const [first] = useState(() => kept.list.find((each) => each.id === openId(name)) ?? null); // shown before this load of the page
  const [id, setId] = useState(() => first?.id ?? newId());
  const [turns, setTurns] = useState(first?.turns ?? []); // {user and pictures or results, texts: {left, right}}; see conversation.js
  const [system, setSystem] = useState(first?.system ?? "");
  const [values, setValues] = useState(() => valuesOf(options, first?.options));
  const [second, setSecond] = useState(() => secondOf(first, name, models));
  const [sent, setSent] = useState(null); // the last request, for its snippets
  const removed = useRef(new Set());
  const { texts, isRunning, start, stop, clear } = useTexts();
  const { members, faults } = readOptions(options, values);
  const sides = [[FIRST, name], ...(second === null ? [] : [[SECOND, second]])];
  const canAsk = !isRunning && Object.keys(faults).length === 0;
  const current = turns.at(-1);
  const textOf = (side, turn) => (turn === current && texts[side] ? texts[side] : turn.texts[side]);

  const requestOf = (side, model, before, next) => ({
    name: side,
    path: PATH,
    body: {
      model,
      messages: messagesOf(side, system, before, (turn) => textOf(side, turn)?.choices[0], next, visionOf(model) !== null),
      ...members,
      ...usageOf(members),
    },
    pictures: [...before, next].flatMap(sendablePictures), // for its snippets
    ...limitOf(options, values, contextOf(model)),
  });
  const lastRequest = () => (current && asks(FIRST, current)
    ? requestOf(FIRST, name, turns.slice(0, -1), current) : requestOf(FIRST, name, turns, { user: "Hello" }));
  const keep = (all) => {
    // A text may end after its conversation is deleted.
    if (removed.current.has(id) || all.length === 0) return;
    kept.save({ id, model: name, updated: Date.now(), system, second, options: changedValues(options, values), turns: all });
  };
  /** Ask a turn after those before it, on the sides that it is for; the texts of other sides stay. */
  const ask = async (before, turn, isAsked = (side) => asks(side, turn)) => {
    if (!canAsk) return;
    setOpenId(name, id);
    setTurns([...before, turn]);
    keep([...before, turn]);
    const requests = sides.filter(([side]) => isAsked(side)).map(([side, model]) => requestOf(side, model, before, turn));
    setSent(requests[0]);
    const ended = await start(requests);
    // The browser ends the requests of a page that it leaves: their error is no part of the text.
    if (hasLeft.current) return;
    const answered = { ...turn, texts: { ...turn.texts, ...ended } };
    setTurns((all) => all.map((each) => (each === turn ? answered : each)));
    keep([...before, answered]);
  };
  const regenerate = (side, at) => {
    const { [side]: dropped, ...others } = turns[at].texts;
    ask(turns.slice(0, at), { ...turns[at], texts: others }, (each) => each === side);
  };
  const hasLeft = useBeforeUnload(() => { if (isRunning) keep([...turns.slice(0, -1), { ...current, texts: { ...current.texts, ...texts } }]); });

  const show = (conversation) => {
    clear();
    setSent(null);
    setId(conversation?.id ?? newId());
    setTurns(conversation?.turns ?? []);
    setOpenId(name, conversation?.id ?? null);
  };
  const open = (conversation) => {
    if (conversation.id === id) return;
    show(conversation);
    setSystem(conversation.system);
    setValues(valuesOf(options, conversation.options));
    setSecond(secondOf(conversation, name, models));
  };
  const remove = (ids) => {
    ids.forEach((each) => removed.current.add(each));
    kept.remove(ids);
    if (ids.includes(id)) show(null);
  };
  const setKept = (isOn) => {
    kept.setOn(isOn);
    setOpenId(name, isOn && turns.length ? id : null);
    if (isOn) keep(turns);
  };
  const bounds = boundsOf(sides.map(([, model]) => visionOf(model)));
  const sentPictures = bounds && countPictures(requestOf(FIRST, name, turns, { user: "" }).body.messages);
  return {
    bounds, sentPictures, blind: sides.map(([, model]) => model).filter((model) => visionOf(model) === null),
    id, turns, system, options, values, faults, second, sides, sent, kept, isRunning, canAsk, textOf, requestOf, lastRequest,
    ask, regenerate, stop, open, remove, setKept, setSystem, setValues,
    begin: () => show(null),
    compareWith: (other) => { show(null); setSecond(other); },
  };
}

/** Call the newest `task` before the browser leaves the page; return a reference to whether it has left. */
function useBeforeUnload(task) {
  const newest = useRef(task);
  const hasLeft = useRef(false);
  newest.current = task;
  useEffect(() => {
    const leave = () => { newest.current(); hasLeft.current = true; };
    const comeBack = () => { hasLeft.current = false; };
    addEventListener("pagehide", leave);
    addEventListener("pageshow", comeBack);
    return () => { removeEventListener("pagehide", leave); removeEventListener("pageshow", comeBack); };
  }, []);
  return hasLeft;
}

/** Return the second model of a kept conversation if the server still has it. */
function secondOf(conversation, name, models) {
  const second = conversation?.second ?? null;
  return second === name || models.some((model) => model.name === second) ? second : null;
}
