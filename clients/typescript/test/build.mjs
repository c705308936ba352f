// Makes of the tests programs for Node, and pages, each a file.
import { writeFile } from "node:fs/promises";

import { build } from "esbuild";

const common = { bundle: true, format: "esm", logLevel: "warning" };
await build({
  ...common,
  entryPoints: ["test/node.ts", "test/units.ts"],
  outdir: "test/dist",
  platform: "node",
  packages: "external",
});
await build({ ...common, entryPoints: ["test/page.ts", "test/react.tsx"], outdir: "test/dist/site", jsx: "automatic" });
for (const name of ["page", "react"]) {
  const head = `<!doctype html><html lang="en"><meta charset="utf-8"><title>${name}</title>`;
  await writeFile(`test/dist/site/${name}.html`, `${head}<body><script type="module" src="${name}.js"></script>`);
}
