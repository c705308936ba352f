// Swagger UI waits for the end of an answer and keeps it whole: a Subscribe would never be shown, a Scan could fill the
// browser's memory. So it is given the beginning of a stream, as plain text.
const STREAM_SHOWN_MS = 5_000;
const STREAM_SHOWN_CHARACTERS = 100_000;

const wholeFetch = window.fetch;
window.fetch = async (...request) => {
  const answer = await wholeFetch(...request);
  const isStream = /x-ndjson|event-stream/.test(answer.headers.get("content-type"));
  return isStream ? beginningOf(answer) : answer;
};

async function beginningOf(answer) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let isWhole = true;
  const cut = () => {
    isWhole = false;
    return reader.cancel();
  };
  const timer = setTimeout(cut, STREAM_SHOWN_MS);
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    text += decoder.decode(piece.value, { stream: true });
    if (text.length > STREAM_SHOWN_CHARACTERS) await cut();
  }
  clearTimeout(timer);
  if (!isWhole) text += "\n(this page shows only the beginning of a stream)\n";
  const headers = new Headers(answer.headers);
  headers.set("content-type", "text/plain");
  return new Response(text, { status: answer.status, headers });
}

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#page",
  deepLinking: true,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
});
