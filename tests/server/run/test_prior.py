"""What devices that choose are told of the fleet."""

from bouquet.common import protocol
from bouquet.common.model.build import initial_model, state_vector
from bouquet.common.model_selection import PRIOR, REPORT
from bouquet.common.settings import load_settings
from bouquet.experiments.simulation.inline_grid import InlineGrid, scripted_client
from bouquet.server.record.writer import RunRecord
from bouquet.server.run.loop import run_rounds


def test_after_a_round_without_reports_devices_are_told_what_they_were_told_before(tmp_path):
    settings = load_settings(None, ["run.rounds=3", "data.clients=4", "model.hidden=[4]", "strategy.name=fedavg"])
    layout, initial = state_vector(initial_model(settings))
    told = {}

    def device(name):
        honest = scripted_client(name, layout, lambda model, _: model)

        def handle(message):
            reply = honest(message)
            if message.metadata.message_type == "train":
                config = message.content[protocol.CONFIG]
                told[round_ := config[protocol.ROUND]] = config.get(PRIOR)
                if round_ == 1:
                    reply.content[protocol.CLIENT][REPORT] = [10.0, -0.5, 0.25, 0.0, 0.0, 0.0, 0.0]
            return reply

        return handle

    grid = InlineGrid({node: device(f"client-{node}") for node in range(2, 6)})
    run_rounds(grid, settings, protocol.to_record(layout, initial), RunRecord(tmp_path / "run"))
    assert told[1] is None
    assert told[2][:4] == [-0.5, 0.025 / 4, 0.0, 0.25]  # of the received model, where all are alike
    assert told[3] == told[2]
