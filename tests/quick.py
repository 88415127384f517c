"""Options that make what a method's server trains short enough for tests."""

QUICK = {
    "ccvr": {"features": 10, "epochs": 2},
    "creff": {"features": 10, "match_steps": 20, "epochs": 20, "lr": 0.1},
    "fedloge": {"steps": 20},
}
