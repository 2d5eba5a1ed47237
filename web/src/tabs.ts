// The tabs: which questions each asks, and how the fields of the page become the words of a command line.

import { FILE } from "./engine.ts";
import type { State } from "./state.ts";

export interface Flag {
  name: string;
  value: string | null;
  repeats: boolean;
  help: string;
  group: string;
}

export interface Catalogue {
  presets: string[];
  hardware: { name: string; display: string }[];
  families: string[];
  questions: { name: string; about: string; flags: Flag[] }[];
}

interface Tab {
  id: string;
  /** Questions it can ask, the first unless another is chosen. */
  asks: [string, ...string[]];
  /** What stands behind the question, from the fields of the page. */
  words: (fields: Map<string, string>) => string[];
}

const model = (fields: Map<string, string>) => [fields.get("model") || "llama-3.1-8b"];
const listed = (text: string | undefined, usual: string) => (text?.trim() || usual).split(/\s+/);

export const TABS: readonly Tab[] = [
  { id: "memory", asks: ["ledger", "plan", "recompute", "infer"], words: model },
  { id: "flop", asks: ["flops", "params"], words: model },
  { id: "time", asks: ["time"], words: model },
  { id: "fit", asks: ["fit"], words: model },
  { id: "layouts", asks: ["layout"], words: model },
  { id: "formats", asks: ["dtype"], words: (fields) => listed(fields.get("numbers"), "0.1") },
  {
    id: "einsum",
    asks: ["einsum"],
    words: (fields) => [
      fields.get("equation") || "b h q d, b h k d -> b h q k",
      ...listed(fields.get("sizes"), "b=1 h=32 q=8192 k=8192 d=128"),
    ],
  },
  {
    id: "compare",
    asks: ["compare"],
    words: (fields) => {
      const others = listed(fields.get("others"), "").filter((name) => name !== "");
      return [...model(fields), ...others];
    },
  },
];

/** Flags that the page itself gives. */
const OWN = ["timeline", "set"];
/** Flags that say how a run is divided: with any of them a layout is looked at, without, the best is looked for. */
const DIVIDES = ["tp", "pp", "cp", "ep"];
/** Flags that say what is gathered and reduced at a time. */
const GATHERED = ["fsdp-unit", "no-prefetch", "no-reshard", "no-sync"];
/** Flags of the step and of memory that are part of a given layout. */
const GIVEN = ["zero", "recompute", "grad-accum", "dp", "offload", ...GATHERED];
const SEARCHED = ["gbs", "top", "most-micro-batch"];

/** Whether a field has no part in a question although its command has the flag. */
function idle(question: string, name: string, fields: Map<string, string>): boolean {
  const given = DIVIDES.some((flag) => fields.has(flag));
  if (question === "layout") return given ? SEARCHED.includes(name) : GIVEN.includes(name);
  // A bare count has no config, and no attention that grows with a sequence.
  if (fields.get("model")?.startsWith("dense:")) return ["seq-len", "set"].includes(name);
  return question === "compare" && fields.get("vary")?.split("=")[0] === name;
}

export function tabOf(state: State): Tab {
  return TABS.find((tab) => tab.id === state.tab) ?? TABS[0]!;
}

export function questionOf(state: State): string {
  const tab = tabOf(state);
  const wanted = state.fields.get("ask");
  return tab.asks.find((name) => name === wanted) ?? tab.asks[0];
}

/** The flags of the question, by the name of their field. */
export function flagsOf(state: State, catalogue: Catalogue): Map<string, Flag> {
  const question = catalogue.questions.find((one) => one.name === questionOf(state));
  const flags = question?.flags.filter((flag) => !idle(questionOf(state), flag.name.slice(2), state.fields)) ?? [];
  return new Map(flags.map((flag) => [flag.name.slice(2), flag]));
}

/** The command line that the page stands for, without the program. */
export function wordsOf(state: State, catalogue: Catalogue): string[] {
  const question = questionOf(state);
  const flags = flagsOf(state, catalogue);
  const words = [question, ...tabOf(state).words(state.fields)];
  for (const [name, value] of state.fields) {
    const flag = flags.get(name);
    if (flag === undefined || value === "" || OWN.includes(name)) continue;
    const word = name === "devices" ? "-n" : flag.name;
    words.push(...(flag.value === null ? [word] : value.startsWith("-") ? [`${word}=${value}`] : [word, value]));
  }
  if (question === "ledger") words.push("--timeline");
  if (question === "layout" && flags.has("gbs") && !state.fields.has("gbs")) words.push("--gbs", "1024");
  if (flags.has("set")) for (const [key, value] of state.sets) words.push("--set", `${key}=${value}`);
  return words;
}

/** Whether the dropped file is what the question is about. */
export function asksFile(state: State): boolean {
  return state.fields.get("model") === FILE;
}
