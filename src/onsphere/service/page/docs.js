function element(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

function details(title, value) {
  return element("details", {}, element("summary", {}, title), element("pre", { tabindex: "0" }, JSON.stringify(value, null, 1)));
}

const api = await (await fetch("/openapi.json")).json();
const resolved = value => JSON.parse(JSON.stringify(value), (_, one) => one && one.$ref ? api.components.schemas[one.$ref.split("/").at(-1)] : one);
const parts = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, told]) => element("section", {},
  element("h2", {}, `${method.toUpperCase()} ${path}`),
  element("div", { class: "card" },
    element("p", {}, told.description ?? ""),
    ...(told.parameters ? [details("Parameters", told.parameters)] : []),
    ...(told.requestBody ? [details("Request", told.requestBody)] : []),
    ...Object.entries(told.responses).map(([status, answer]) => details(`${status} ${answer.description}`, resolved(answer.content ?? {})))))));
document.getElementById("paths").replaceChildren(...parts);
