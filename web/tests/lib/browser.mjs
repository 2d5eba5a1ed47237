// A real browser with the built page in it, and the program beside it.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const dist = fileURLToPath(new URL("../../dist/", import.meta.url));
const root = fileURLToPath(new URL("../../../", import.meta.url));

assert.ok(existsSync(path.join(dist, "index.html")), "build the page first: web/build");

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };

/** Serves the built page; gives its address and a way to stop. */
export function serve() {
  const server = createServer((request, response) => {
    const name = new URL(request.url, "http://page").pathname.replace(/\/$/, "/index.html");
    const file = path.join(dist, path.basename(name));
    if (!existsSync(file)) return response.writeHead(404).end();
    response.writeHead(200, { "content-type": TYPES[path.extname(file)] }).end(readFileSync(file));
  });
  return new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => {
      resolve({ address: `http://127.0.0.1:${server.address().port}/`, stop: () => server.close() });
    });
  });
}

function found() {
  const names = process.env.CHROMIUM ? [process.env.CHROMIUM] : ["chromium", "chromium-browser", "google-chrome"];
  const all = names.map((name) => spawnSync("which", [name], { encoding: "utf8" }).stdout.trim());
  const first = all.find((name) => name !== "");
  assert.ok(first, "no Chromium on the path");
  return first;
}

/** A browser with a fresh profile. */
export function launch() {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"];
  return chromium.launch({ executablePath: found(), args });
}

/** A page at an address, with all that it complains of and asks for. */
export async function open(browser, address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const complaints = [];
  const requests = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => requests.push(request.url()));
  await page.goto(address);
  return { page, complaints, requests };
}

/** Waits until the page has answered with this command. */
export async function answered(page, command) {
  await page.waitForFunction(
    (wanted) =>
      document.getElementById("command").textContent === wanted &&
      !["stale", "more"].some((unready) => document.body.classList.contains(unready)) &&
      document.querySelector("#answer strong") !== null,
    command,
    { timeout: 60_000 },
  );
}

/** The answer that is shown, as the document the page has of it. */
export async function documentOf(page) {
  await page.locator("#document").evaluate((details) => (details.open = true));
  await page.waitForFunction(
    () => document.getElementById("json").dataset.of === document.getElementById("command").textContent,
  );
  return page.locator("#json").textContent();
}

/** Waits until the page says what is wrong, and gives that. */
export async function refused(page, pattern) {
  const problems = page.locator("#problems");
  await problems.waitFor({ state: "visible", timeout: 30_000 });
  await page.waitForFunction(
    (source) => new RegExp(source).test(document.getElementById("problems").textContent),
    pattern.source,
  );
  return problems.textContent();
}

/** Fills a field of the form. */
export const fill = (page, name, value) => page.locator(`#form [name="${name}"], #own [name="${name}"]`).first().fill(value);

export const fragment = (fields) => `#${new URLSearchParams({ v: "1", ...fields })}`;

/** What the program answers, as its JSON text; the page has the same but for the flag that asks for it. */
export function napkin(words) {
  const target = process.env.CARGO_TARGET_DIR ?? path.join(root, "target");
  const program = process.env.NAPKIN ?? path.join(target, "debug/napkin");
  assert.ok(existsSync(program), "build the program first: cargo build --package napkin-cli");
  const run = spawnSync(program, [...words, "--json"], { encoding: "utf8", maxBuffer: 64 << 20 });
  assert.ok(run.status === 0 || run.status === 1, run.stderr);
  return run.stdout.replace(' --json",\n', '",\n');
}

/** A folder for pictures, outside of the checkout. */
export const pictures = process.env.PICTURES ?? mkdtempSync(path.join(tmpdir(), "napkin-page-"));

/** The text of a preset's config. */
export const preset = (name) => readFileSync(path.join(root, `data/models/${name}.json`), "utf8");
