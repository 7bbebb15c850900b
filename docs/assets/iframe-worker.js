// Browsers start no worker for a page that was opened from a disk. There, and only there, the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      // What the script says to "self" is for the page; what the page says is an event inside. Both come later
      // and as copies, as from a worker: an answer during a keystroke, or one that both sides write into, loses the keystroke.
      inside.postMessage = (data) =>
        setTimeout(() => {
          const event = new MessageEvent("message", { data: structuredClone(data) });
          this.dispatchEvent(event);
          if (this.onmessage) this.onmessage(event);
        });
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      this.ready = new Promise((done, failed) => {
        script.onload = done;
        script.onerror = failed;
      });
      inside.document.body.append(script);
      this.say = (data) =>
        setTimeout(() => inside.dispatchEvent(new inside.MessageEvent("message", { data: inside.structuredClone(data) })));
      this.terminate = () => frame.remove();
    }

    postMessage(data) {
      this.ready.then(() => this.say(data));
    }
  };
}
