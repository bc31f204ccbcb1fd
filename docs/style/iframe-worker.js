// Search in pages that are opened as files: browsers start no worker there, so the worker's script runs in a hidden frame.
// Material for MkDocs would load such a script (iframe-worker) from a network; this one does what its search needs, and comes with the site.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.src = "about:blank"
      document.body.appendChild(frame)
      const inner = frame.contentWindow
      const outer = this
      inner.document.open()
      inner.document.write("<!doctype html><body></body>")
      inner.document.close()
      // What the script calls: answers go to the page, further scripts are loaded one after another.
      inner.postMessage = data => {
        const event = new MessageEvent("message", { data })
        outer.dispatchEvent(event)
        if (outer.onmessage) outer.onmessage(event)
      }
      inner.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => loaded(inner, next)), Promise.resolve())
      this.ready = loaded(inner, url)
      this.inner = inner
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.inner.frameElement.remove()
    }
  }

  const loaded = (inner, url) =>
    new Promise((resolve, reject) => {
      const script = inner.document.createElement("script")
      script.src = url
      script.onload = resolve
      script.onerror = reject
      inner.document.body.appendChild(script)
    })
}
