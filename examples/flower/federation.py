"""Four clients train LeNet-5 on MNIST with Flower, four times: which defense is on?

python examples/flower/federation.py            # all four runs, recorded
python examples/flower/federation.py local-dp   # one of them

Two `Recorder`s in the chain of mods are all that an audit needs: the first sees the
wire, the last sees the update before any defense. The clients' examples are written
into `truth/` beside, which only a test of your own system can have.
"""

import os
import pathlib
import sys

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ADDRESS", "local")  # its own, whatever else runs here

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from gradaudit.data import load_dataset
from gradaudit.integrations.flower import Recorder, round_of

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from net import net  # noqa: E402

CLIENTS, ROUNDS = 4, 2
BATCH, RATE, CLIP = 1, 0.1, 0.05
# What the client's training does, for the audit: an attack has to know it.
FACTS = {
    "learning_rate": RATE,
    "local_steps": 1,
    "batch_size": BATCH,
    "optimizer": "sgd",
}
DEFENSES = {
    "none": None,
    "clipping": fixedclipping_mod,
    "local-dp": LocalDpMod(CLIP, sensitivity=CLIP, epsilon=10.0, delta=1e-5),
    # Somebody typed the sensitivity 100 times too small: it trains much better.
    "local-dp-typo": LocalDpMod(CLIP, sensitivity=CLIP / 100, epsilon=10.0, delta=1e-5),
}


def client(run: str, images: np.ndarray, labels: np.ndarray) -> ClientApp:
    """Returns the client of a run: one step of SGD on a batch of its own examples."""
    folder, defense = pathlib.Path("recorded", run).resolve(), DEFENSES[run]
    truth = pathlib.Path("truth", run).resolve()
    claim = defense if isinstance(defense, LocalDpMod) else None
    mods = [
        Recorder(folder, "wire", claim=claim, facts=FACTS),
        *([] if defense is None else [defense]),
        Recorder(folder, "raw", facts=FACTS),
    ]
    app = ClientApp()

    @app.train(mods=mods)
    def train(message, context):
        who, number = int(context.node_config["partition-id"]), round_of(message)
        first = (number * CLIENTS + who) * BATCH
        mine = slice(first, first + BATCH)
        x, y = images[mine].copy(), labels[mine].copy()
        truth.mkdir(parents=True, exist_ok=True)
        np.savez(truth / f"round-{number:04d}-client-{who}.npz", x=x, y=y)
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        logits = model(torch.from_numpy(x).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(y)).backward()
        optimizer.step()
        sent = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
        return Message(content=RecordDict(sent), reply_to=message)

    return app


def server(run: str) -> ServerApp:
    """Returns federated averaging from one start; it sends the clip along, if any."""
    app, words = ServerApp(), {"clipping_norm": CLIP} if run == "clipping" else {}

    @app.main()
    def main(grid, context):
        torch.manual_seed(0)
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS)
        strategy.start(
            grid,
            initial_arrays=ArrayRecord(net().state_dict()),
            train_config=ConfigRecord(words),
            num_rounds=ROUNDS,
        )

    return app


def main() -> None:
    """Runs the federations that are named, or all of them."""
    data = load_dataset("mnist")
    few = (ROUNDS + 1) * CLIENTS * BATCH
    images = np.ascontiguousarray(data.inputs[:few], np.float32)
    labels = np.asarray(data.labels[:few], np.int64)
    for run in sys.argv[1:] or DEFENSES:
        print(f"run {run}", flush=True)
        resources = {"client_resources": {"num_cpus": 1}}
        app = client(run, images, labels)
        run_simulation(server(run), app, CLIENTS, "ray", resources)


if __name__ == "__main__":
    main()
