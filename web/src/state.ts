// What the page shows, and its form in the address: readable, versioned, never sent anywhere.

import { FILE } from "./engine.ts";

export interface State {
  tab: string;
  /** Fields by name: flags without their dashes, `model`, and what stands behind a question. Empty ones are left out. */
  fields: Map<string, string>;
  /** Changed keys of the config. */
  sets: Map<string, string>;
  /** The dropped config. */
  file: Uint8Array;
}

const VERSION = "1";
/** Longest file that a link carries. */
const LONGEST = 64 << 10;
/** Shorter names in the address. */
const SHORT: readonly (readonly [string, string])[] = [
  ["model", "m"],
  ["devices", "n"],
];

export function first(): State {
  const fields = { model: "llama-3.1-8b", hw: "h100-sxm", devices: "8", zero: "3" };
  return { tab: "memory", fields: new Map(Object.entries(fields)), sets: new Map(), file: new Uint8Array() };
}

const shorter = (name: string) => SHORT.find(([long]) => long === name)?.[1] ?? name;
const longer = (name: string) => SHORT.find(([, short]) => short === name)?.[0] ?? name;

/** The part of the address behind `#`. `packed` is the file as `pack` writes it. */
export function toFragment(state: State, packed: string, tab = state.tab): string {
  const parts = new URLSearchParams({ v: VERSION, tab });
  for (const [name, value] of state.fields) if (value !== "") parts.set(shorter(name), value);
  for (const [key, value] of state.sets) parts.set(`set.${key}`, value);
  if (packed !== "") parts.set("cfg", packed);
  return parts.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
}

/** What an address says; a message instead where it cannot be read. `kept` is the file of the page, which may be too long for it. */
export async function fromFragment(fragment: string, kept: Uint8Array): Promise<State | string> {
  const parts = new URLSearchParams(fragment.replace(/^#/, ""));
  if (!parts.has("v")) return first();
  if (parts.get("v") !== VERSION) return `this link has version ${parts.get("v")}; this page reads version ${VERSION}`;
  const state: State = { tab: "memory", fields: new Map(), sets: new Map(), file: new Uint8Array() };
  for (const [name, value] of parts) {
    if (name === "tab") state.tab = value;
    else if (name.startsWith("set.")) state.sets.set(name.slice(4), value);
    else if (name !== "v" && name !== "cfg") state.fields.set(longer(name), value);
  }
  try {
    state.file = parts.has("cfg") ? await unpack(parts.get("cfg")!) : kept;
  } catch {
    return "the config in this link is damaged";
  }
  if (state.file.length === 0 && state.fields.get("model") === FILE) return "this link names a config that it does not carry";
  return state;
}

/** A file as text for an address: deflated, base64url. Empty where it is too long for one. */
export async function pack(file: Uint8Array): Promise<string> {
  if (file.length === 0 || file.length > LONGEST) return "";
  const packed = new Uint8Array(await through(file, new CompressionStream("deflate-raw")));
  const text = btoa(Array.from(packed, (one) => String.fromCharCode(one)).join(""));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpack(text: string): Promise<Uint8Array> {
  if (text === "") return new Uint8Array();
  const packed = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(packed, (one) => one.charCodeAt(0));
  return new Uint8Array(await through(bytes, new DecompressionStream("deflate-raw")));
}

function through(bytes: Uint8Array, stream: CompressionStream | DecompressionStream): Promise<ArrayBuffer> {
  return new Response(new Blob([bytes as BlobPart]).stream().pipeThrough(stream)).arrayBuffer();
}
