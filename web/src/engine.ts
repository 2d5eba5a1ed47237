// The worker that answers: started once, replaced when it fails, takes too long, or is asked something newer.

declare const WORKER: string; // the bundled text of worker.ts, put here by bundle.mjs

export interface Call {
  id: number;
  name: "answer" | "catalogue" | "document" | "flipped" | "moment" | "preset" | "redraw";
  given: unknown[];
}

export interface Reply {
  id: number;
  text?: string;
  error?: string;
}

/** What `answer` gives: see `crates/wasm/src/lib.rs`. */
export type Answer = { warnings: Warning[] } & (
  | { ok: true; no: boolean; kind: string; command: string; answer: string; remarks: string[]; shown: string[]; assumed: string }
  | { ok: false; problems: string }
);

export interface Warning {
  message: string;
  pointer: string | null;
}

export interface Question {
  words: string[];
  file: Uint8Array;
  width: number;
}

/** The name under which a dropped file is asked about. */
export const FILE = "config.json";

/** A question that runs this long gives way to a newer one. */
const PATIENCE = 200;
/** No question runs longer. */
export const LIMIT = 120_000;

type Waiting = { resolve: (text: string) => void; reject: (error: Error) => void };

/** Why a call has no answer: something newer was asked. */
export class Stale extends Error {}

export class Engine {
  private worker: Worker | undefined;
  private waiting = new Map<number, Waiting>();
  private last = 0;
  private asked: { id: number; since: number } | undefined;
  private next: { question: Question; waiting: Waiting } | undefined;
  private readonly source = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));

  constructor(private readonly module: Promise<WebAssembly.Module>) {}

  /** Calls a function of the core. */
  async call(name: Call["name"], ...given: unknown[]): Promise<string> {
    // A worker that is there is asked at once: waiting for anything would let the page draw first.
    this.worker ??= this.start(await this.module);
    const worker = this.worker;
    const id = ++this.last;
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      worker.postMessage({ id, name, given } satisfies Call);
    });
  }

  /** Answers the newest question; one that was asked before and is not answered yet is `Stale`. */
  ask(question: Question): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const waiting = { resolve: (text: string) => resolve(JSON.parse(text) as Answer), reject };
      this.next?.waiting.reject(new Stale());
      this.next = { question, waiting };
      if (this.asked === undefined) {
        void this.run();
      } else if (performance.now() - this.asked.since > PATIENCE) {
        this.stop(new Stale());
      }
    });
  }

  /** Ends what runs, if anything does. */
  stop(why: Error): void {
    this.worker?.terminate();
    this.worker = undefined;
    const all = [...this.waiting.values()];
    this.waiting.clear();
    for (const one of all) one.reject(why);
  }

  private async run(): Promise<void> {
    while (this.next !== undefined) {
      const { question, waiting } = this.next;
      this.next = undefined;
      this.asked = { id: this.last, since: performance.now() };
      const limit = setTimeout(() => this.stop(new Error("no answer within two minutes")), LIMIT);
      const again = setTimeout(() => this.next && this.stop(new Stale()), PATIENCE);
      try {
        const { words, file, width } = question;
        waiting.resolve(await this.call("answer", JSON.stringify(words), FILE, file, width));
      } catch (error) {
        waiting.reject(error instanceof Error ? error : new Error(String(error)));
      } finally {
        clearTimeout(limit);
        clearTimeout(again);
        this.asked = undefined;
      }
    }
  }

  private start(module: WebAssembly.Module): Worker {
    const worker = new Worker(this.source);
    worker.postMessage(module);
    worker.onmessage = ({ data }: MessageEvent<Reply>) => {
      const waiting = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if (data.error === undefined) {
        waiting?.resolve(data.text ?? "");
      } else {
        // What has failed may be left in any state: the next call gets a new one.
        waiting?.reject(new Error(`napkin has failed: ${data.error}`));
        if (this.worker === worker) this.stop(new Error(data.error));
      }
    };
    worker.onerror = (event) => {
      event.preventDefault();
      if (this.worker === worker) this.stop(new Error(event.message));
    };
    return worker;
  }
}

/** The compiled core: the bytes are in the page where it is one file, and beside it where it is served. */
export async function core(): Promise<WebAssembly.Module> {
  const inside = document.getElementById("core")?.textContent;
  if (!inside) {
    const served = await fetch("napkin.wasm");
    if (!served.ok) throw new Error(`napkin.wasm: ${served.status} ${served.statusText}`);
    // Read as it comes, and kept compiled by the browser for the next visit; that it does only where the server names the type.
    const streamed = served.headers.get("content-type") === "application/wasm";
    return streamed ? WebAssembly.compileStreaming(served) : WebAssembly.compile(await served.arrayBuffer());
  }
  const packed = Uint8Array.from(atob(inside), (one) => one.charCodeAt(0));
  const bytes = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return WebAssembly.compile(await new Response(bytes).arrayBuffer());
}
