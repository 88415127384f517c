"""The Flower client: hands every message to the site's worker and its answer back.

Flower starts a process for every message, so this module imports nothing heavy: PyTorch, the data
and the model stay in the long-lived worker of the site, which the node config names by its
``socket``. Without one, as in a simulation where processes do stay, the worker is this process.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cafedcl.deploy.flower.link import ask
from cafedcl.deploy.flower.records import unwrap, wrap

if TYPE_CHECKING:
    from cafedcl.deploy.flower.site import Site

app = ClientApp()
_here: "list[Site]" = []


@app.train()
@app.evaluate()
@app.query()
def relay(message: Message, context: Context) -> Message:
    """Pass a message on and return the answer."""
    parts = unwrap(message.content)
    socket = context.node_config.get("socket")
    answer = (
        ask(str(socket), parts, message.metadata.ttl) if socket else _answer_here(parts, context)
    )
    return Message(wrap(answer), reply_to=message)


def _answer_here(parts: dict[str, bytes], context: Context) -> dict[str, bytes]:
    """Answer for a simulated site; what it keeps for its client lies in the run folder."""
    from cafedcl.deploy.flower.site import Site

    if not _here:
        _here.append(Site(Path(str(context.run_config["out"])) / "sites"))
    return _here[0].answer(parts, int(context.node_config["partition-id"]))
