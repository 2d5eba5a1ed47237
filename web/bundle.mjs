// The page from its sources and the core: `dist/` to be served, `dist/napkin.html` to be opened from disk.

import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import esbuild from "esbuild";
import { catalogue, chart_style, initSync } from "./core/napkin.js";

const here = (name) => new URL(name, import.meta.url);
const wasm = readFileSync(here("core/napkin_bg.wasm"));
initSync({ module: wasm });

const options = { bundle: true, minify: true, format: "iife", target: "es2022", charset: "utf8", write: false };
const bundled = async (entry, define = {}) => {
  const built = await esbuild.build({ ...options, entryPoints: [here(entry).pathname], define });
  return built.outputFiles[0].text.trim();
};
const worker = await bundled("src/worker.ts");
const script = await bundled("src/main.ts", { WORKER: JSON.stringify(worker) });
const sheet = readFileSync(here("src/style.css"), "utf8") + chart_style();
const style = (await esbuild.transform(sheet, { loader: "css", minify: true, charset: "utf8" })).code.trim();

const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
const { presets, hardware } = JSON.parse(catalogue());
const option = ({ name, display }) =>
  `<option value="${escape(name)}"${name === "h100-sxm" ? " selected" : ""}>${escape(display)}</option>`;
const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

/** The page with a policy that lets it run its own script and nothing else; a worker of its own text has the same policy. */
function page({ scripts, styles, connect, parts }) {
  const policy = [
    "default-src 'none'",
    `script-src ${scripts} 'wasm-unsafe-eval'`,
    `style-src ${styles}`,
    "img-src data:",
    "worker-src blob:",
    ...(connect ? [`connect-src ${connect}`] : []),
    "form-action 'none'",
    "base-uri 'none'",
  ].join("; ");
  const filled = {
    policy,
    presets: presets.map((name) => `<option value="${escape(name)}">`).join(""),
    hardware: hardware.map(option).join(""),
    ...parts,
  };
  return readFileSync(here("src/index.html"), "utf8").replace(/\{\{(\w+)\}\}/g, (_, name) => filled[name]);
}

rmSync(here("dist"), { recursive: true, force: true });
mkdirSync(here("dist"));
const write = (name, data) => writeFileSync(here(`dist/${name}`), data);
write("napkin.wasm", wasm);
write("napkin.js", script);
write("napkin.css", style);
write(
  "index.html",
  page({
    scripts: "'self'",
    styles: "'self'",
    connect: "'self'",
    parts: { style: '<link rel="stylesheet" href="napkin.css">', script: '<script src="napkin.js"></script>' },
  }),
);
// Nothing in a script may look like its end.
const inline = script.replaceAll("</script", "<\\/script");
const core = gzipSync(wasm, { level: 9 });
write(
  "napkin.html",
  page({
    scripts: hash(inline),
    styles: hash(style),
    parts: {
      style: `<style>${style}</style>`,
      script: `<script type="application/octet-stream" id="core">${core.toString("base64")}</script>\n<script>${inline}</script>`,
    },
  }),
);
const size = (bytes) => `${(bytes / 1000).toFixed(1)} KB`;
const packed = (text) => size(gzipSync(text, { level: 9 }).length);
console.log(`core   ${size(wasm.length)}, ${size(core.length)} gzipped`);
console.log(`script ${size(script.length)}, ${packed(script)} gzipped`);
console.log(`style  ${size(style.length)}, ${packed(style)} gzipped`);
