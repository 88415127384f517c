"""The Flower client of a simulation on Ray: this process is the site of every client.

A deployed site never loads it: its worker answers by itself (`cafedcl.deploy.flower.runtime`).
"""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cafedcl.deploy.flower.records import unwrap, wrap
from cafedcl.deploy.flower.site import Site

app = ClientApp()
_sites: list[Site] = []
"""This process's site, once it is made."""


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer as the site of the node's client, whose memory is stored in the run folder."""
    if not _sites:
        folder = Path(str(context.run_config["out"])) / "sites"
        # The user who started the simulation has chosen the code that runs here.
        _sites.append(Site(folder, plugins=True))
    parts = _sites[0].answer(unwrap(message.content), int(context.node_config["partition-id"]))
    return Message(wrap(parts), reply_to=message)
