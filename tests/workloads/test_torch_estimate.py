"""`hp.estimate`: a step's time, memory and modules without running it."""

import pytest
from support.torch_steps import TARGET, Mlp, X, nn, torch

import hybridperf as hp
from hybridperf.io import InputError

GPUS = ["h100_sxm", "a100_sxm_80gb", "l4"]


class Deep(nn.Module):
    """Blocks of two layers."""

    def __init__(self, blocks=3, width=256):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).square().mean()


def test_an_estimate_is_the_prediction_of_the_program() -> None:
    """One capture, one price: the same seconds, interval, bytes and notes."""
    found = hp.estimate(Mlp(), (X, TARGET), device="h100_sxm", optimizer=torch.optim.AdamW)
    step = hp.from_torch(Mlp(), X, TARGET, optimizer=torch.optim.AdamW)
    result = hp.predict("h100_sxm", step)
    assert (found.time_s, found.low_s, found.high_s) == (
        result.time_s, result.low_s, result.high_s,
    )  # fmt: skip
    assert found.peak_bytes == step.peak_memory.bytes
    assert found.notes == result.notes
    assert found.samples == len(X)


def test_modules_share_the_step_and_its_memory() -> None:
    net = Deep()
    found = hp.estimate(net, torch.zeros(4096, 256), device="h100_sxm", optimizer=torch.optim.AdamW)
    tree = found.tree().set_index("module")
    top = tree[tree["level"] == 0]
    assert top["seconds"].sum() == pytest.approx(found.time_s)
    assert top["peak_bytes"].sum() == found.peak_bytes
    assert tree.loc["Deep", "parameters"] == sum(p.numel() for p in net.parameters())
    blocks = tree.loc[[f"Deep.blocks.{at}" for at in range(3)]]
    assert blocks["parameters"].nunique() == 1
    # the first needs no gradient of its input
    assert blocks["seconds"].iloc[1] == pytest.approx(blocks["seconds"].iloc[2], rel=0.05)
    later = blocks.iloc[1:]
    assert (later["backward_s"] > 1.2 * later["forward_s"]).all()
    inner = tree.loc[[f"Deep.blocks.1.{at}" for at in range(3)]]
    assert inner["seconds"].sum() <= 1.0001 * blocks["seconds"].iloc[1]
    assert tree.loc["Deep.blocks.1.1", "kind"] == "GELU"
    weights = 4 * blocks["parameters"]
    assert (blocks["peak_bytes"] > weights).all()
    assert tree.loc["optimizer", "peak_bytes"] >= 2 * 4 * tree.loc["Deep", "parameters"]
    assert set(found.tree(depth=2)["level"]) == {0, 1}


def test_a_block_is_estimated_and_nothing_in_it_happens() -> None:
    """Real tensors: the same as the program's, and numbers, gradients and states as before."""
    net, x = Deep(), torch.ones(64, 256)
    update = torch.optim.AdamW(net.parameters())
    before = [one.detach().clone() for one in net.parameters()]

    def train_step(x):
        update.zero_grad()
        loss = net(x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        update.step()
        return loss

    with hp.estimate("h100_sxm", samples=64) as report:
        loss = train_step(x)
        with pytest.raises(InputError, match="expected time_s of a step that is over"):
            report.time_s  # noqa: B018
    assert loss.shape == ()
    assert all(map(torch.equal, before, net.parameters()))
    assert all(one.grad is None for one in net.parameters())
    assert not update.state
    same = hp.estimate(train_step, x, device="h100_sxm")
    assert report.time_s == pytest.approx(same.time_s, rel=1e-6)
    assert report.peak_bytes == same.peak_bytes
    assert report.samples == 64
    train_step(x)  # for real
    assert len(update.state) == len(before)
    with hp.estimate("h100_sxm") as again:
        train_step(x)
    assert again.time_s == pytest.approx(report.time_s, rel=0.02)
    assert not any(map(torch.equal, before, net.parameters()))


def test_what_a_block_raises_is_raised() -> None:
    with pytest.raises(InputError, match="a number is read from a tensor"), hp.estimate("l4"):
        (X.sum() * 2).item()
    assert float(X.sum()) == 0  # the modes are left


def test_a_model_without_weights_may_be_too_large() -> None:
    with hp.without_memory():
        net = nn.Sequential(*[nn.Linear(32768, 32768, bias=False) for _ in range(12)])
    x = torch.zeros(8, 32768)
    found = hp.estimate(net, x, device=GPUS, train=False)
    table = found.devices().set_index("device")
    assert found.fits
    assert found.chance > 0.95  # 52 of 86 GB
    assert table.loc["l4", "chance"] < 0.01
    assert list(table.index)[-1] == "l4"  # without room
    least = table["usd_per_million"].idxmin()
    assert found.cheapest == least
    each = table["usd_per_hour"] * table["time_s"] / 3600 / 8 * 1e6
    assert table["usd_per_million"].dropna().to_numpy() == pytest.approx(each.dropna().to_numpy())
    assert not hp.estimate(net, x, device="l4", train=False).fits


def test_it_is_read_as_text_and_in_a_notebook() -> None:
    found = hp.estimate(Deep(), torch.zeros(64, 256), device=GPUS[:2])
    said, page = repr(found), found._repr_html_()
    assert said.splitlines()[0].startswith("Deep on h100_sxm: ")
    assert "fits (chance 100%)" in said
    assert "    0  " in said  # a block, two levels in
    assert page.count("<details") == page.count("</details>") > 3
    assert page.count("<div") == page.count("</div>")
    assert "GELU" in page


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: hp.estimate(Mlp(), (X, TARGET), device=[]), "expected a device, its folder"),
        (lambda: hp.estimate(Mlp(), (X, TARGET)), "expected device="),
        (lambda: hp.estimate("h100_sxm", X), "or a device alone to begin a block"),
        (lambda: hp.estimate(Mlp(), (X, TARGET), device="h1000"), "h1000"),
        (lambda: hp.estimate(Mlp(), X, device="h100_sxm"), "expected the arguments of Mlp"),
        (lambda: hp.estimate(Mlp(), (X, TARGET), device="knl7250"), "expected a GPU, got knl7250"),
        (lambda: hp.estimate(7, X, device="h100_sxm"), "expected a function or a module, got 7"),
    ],
)
def test_what_is_wrong_is_one_sentence(given, says) -> None:
    with pytest.raises(InputError) as error:
        given()
    assert says in str(error.value)
    assert "\n" not in str(error.value)
