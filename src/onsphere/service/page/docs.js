function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

function details(title, value) {
  return element("details", {}, element("summary", {}, title), element("pre", { tabindex: "0" }, JSON.stringify(value, null, 1)));
}

const key = sessionStorage.getItem("onsphere-key");
const api = await (await fetch("/openapi.json", { headers: key ? { "X-API-Key": key } : {} })).json();
const resolve = value => JSON.parse(JSON.stringify(value), (_, one) => one && one.$ref ? resolve(api.components.schemas[one.$ref.split("/").at(-1)]) : one);
const parts = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => element("section", {},
  element("h2", {}, `${method.toUpperCase()} ${path}`),
  element("div", { class: "card" },
    element("p", {}, operation.description ?? ""),
    ...(operation.parameters ? [details("Parameters", operation.parameters)] : []),
    ...(operation.requestBody ? [details("Request", resolve(operation.requestBody))] : []),
    ...Object.entries(operation.responses).map(([status, answer]) => details(`${status} ${answer.description}`, resolve(answer.content ?? {})))))));
document.getElementById("paths").replaceChildren(...parts);
