"""The Flower client: passes every message to the site's worker, and its answer back.

Flower starts a process for every message, so this module imports nothing heavy: PyTorch, the data
and the model stay in the site's long-lived worker, at the ``socket`` of the node config. A
simulation has no socket. Its processes live long, so the worker is this process.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cafedcl.deploy.flower.link import MessageParts, request_worker
from cafedcl.deploy.flower.records import unwrap, wrap

if TYPE_CHECKING:
    from cafedcl.deploy.flower.site import Site

app = ClientApp()
_simulated_site: "list[Site]" = []
"""This process's site in a simulation, once it is made."""


@app.train()
@app.evaluate()
@app.query()
def relay(message: Message, context: Context) -> Message:
    """Pass a message on and return the answer."""
    parts = unwrap(message.content)
    socket = context.node_config.get("socket")
    if socket:
        answer = request_worker(str(socket), parts, message.metadata.ttl)
    else:
        answer = _answer_here(parts, context)
    return Message(wrap(answer), reply_to=message)


def _answer_here(parts: MessageParts, context: Context) -> MessageParts:
    """Answer as a simulated site, which stores its client's memory in the run folder."""
    from cafedcl.deploy.flower.site import Site

    if not _simulated_site:
        _simulated_site.append(Site(Path(str(context.run_config["out"])) / "sites"))
    return _simulated_site[0].answer(parts, int(context.node_config["partition-id"]))
