"""The file that `gradaudit audit init` writes: every key with its default."""

TEMPLATE = """\
# What `gradaudit audit` is asked for. Every key may be left out; what stands here are
# the defaults. The command line wins over this file.

title = ""  # of the page
seed = 0    # everything random follows from it

[scope]
# Whose examples are attacked: names of `gradaudit data list`, or paths of your files.
datasets = ["lfw-patches"]
# model = "cpl"  # see `gradaudit list models`; cpl for images, mlp for tables
# What is put to the test: see `gradaudit list defenses`. Your own: "mine.py:defense"
# (then say --trust). "none" beside others shows that the attacks work at all.
defenses = ["none", "prune:ratio=0.6,at=per_example", "fed-sdp", "fed-cdp"]
# Where the adversary reads: 2 one example's gradient at the client, 1 a client's update
# at the client, 0 a client's update at the server.
types = [2, 1, 0]
# What it knows: curious (the model), aware (also the defense), informed (also
# candidates, one of which is the victim); malicious also chooses the parameters.
threats = ["curious", "aware", "informed"]
attacks = []  # [] = the strongest of each threat; see `gradaudit list attacks`

[captured]
# Updates that your own system recorded, instead of simulated ones (docs/own-system.md):
# then leave datasets, defenses and types as they are here, and say the model.
# folder = "recorded"
# truth = "truth"  # the clients' examples, if you have them

[attack]
victims = 6          # of each cell; more make the intervals narrower
# draws = 4          # networks, victims dealt over them
# batch_size = 3     # of types 0 and 1
local_steps = 1
round = 0            # rounds of training before the one that is read
# iterations = 300   # the attacks' own budget by default
# restarts = 1
success_rmse = 0.1   # at or below which a victim counts as rebuilt (PSNR >= 20 dB)

[line-up]
candidates = 10
looks = [1, 5, 20]  # readings of one victim; the first decides the verdict
line_ups = 200

[mechanism]
trials = 20000  # of the test whether the noise is really on; 0 leaves it out

[federation]
delta = 0.00001
# The federation whose epsilon is accounted for; by default the data set's published
# one, or that of the papers' MNIST:
# clients = 1000
# clients_per_round = 100
# local_steps = 100
# batch_size = 5
# rounds = 100
# examples = 500        # of each client
# selection = "fixed"   # or poisson
# batches = "fixed"     # or poisson
# partition = "shards:classes=2"

[training]
rounds = 0  # also train so many rounds under each defense, for accuracy; 0: don't

[gates]
# Limits that must hold, for continuous integration: exit code 1 if one is broken, 3 if
# it can't be decided.
# max_asr = 0.05
# max_line_up = 0.3
# min_rmse = 0.2
# max_epsilon = 8.0
# require_certificate = true
"""
