// Search runs in a worker. Browsers start no worker for pages that are opened from disk, so a hidden frame takes its place there.
// Named as it is so that the site generator does not add a script of the same purpose from the network.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.scope = this.frame.contentWindow;
      this.scope.postMessage = (data) => this.deliver(this, data);
      const script = this.scope.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        this.loaded = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.onerror = () => this.onerror?.(new Event("error"));
      this.scope.document.head.append(script);
    }

    postMessage(data) {
      if (!this.loaded) this.waiting.push(data);
      else this.deliver(this.scope, data);
    }

    // As between threads: a copy of the data, and later.
    deliver(receiver, data) {
      const copy = structuredClone(data);
      setTimeout(() => receiver.onmessage?.(new MessageEvent("message", { data: copy })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
