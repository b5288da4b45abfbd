"""Plain PyTorch models that diffuse, read sequences, graphs and tables, as those of pictures."""

import math

from support.plain_pictures import PLAIN, plain, seen, tokens
from support.torch_steps import functional, nn, torch

__all__ = ["PLAIN"]


# diffusion ---------------------------------------------------------------------------------------


@plain
def diffusion_transformer():
    """Layers whose norms are scaled and shifted by the time."""

    class Block(nn.Module):
        def __init__(self, width=64):
            super().__init__()
            self.norms = nn.ModuleList(
                nn.LayerNorm(width, elementwise_affine=False) for _ in range(2)
            )
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
            )
            self.told = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

        def forward(self, x, time):
            shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = self.told(time)[:, None].chunk(
                6, -1
            )
            h = self.norms[0](x) * (1 + scale) + shift
            q, k, v = self.qkv(h).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            h = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + gate * self.out(h)
            return x + gate_mlp * self.mlp(self.norms[1](x) * (1 + scale_mlp) + shift_mlp)

    blocks = nn.ModuleList(Block() for _ in range(2))

    def step(x, at):
        rates = torch.exp(-math.log(10000) * torch.arange(32) / 32)
        time = torch.cat([(at[:, None] * rates).cos(), (at[:, None] * rates).sin()], -1)
        noise = torch.randn_like(x)
        h = x + noise
        for block in blocks:
            h = block(h, time)
        return functional.mse_loss(h, noise)

    return step, (torch.zeros(2, 16, 64), torch.zeros(2))


@plain
def diffusion_network():
    """Convolutions with group norms, attention in the middle."""
    first, norm = nn.Conv2d(4, 64, 3, padding=1), nn.GroupNorm(8, 64)
    attend, last = nn.MultiheadAttention(64, 4, batch_first=True), nn.Conv2d(64, 4, 3, padding=1)
    time = nn.Linear(64, 64)

    def step(x, at):
        h = functional.silu(norm(first(x))) + time(at)[..., None, None]
        small = functional.avg_pool2d(h, 2)
        rows = small.flatten(2).transpose(1, 2)
        found = attend(rows, rows, rows, need_weights=False)[0].transpose(1, 2)
        h = h + functional.interpolate(found.unflatten(2, small.shape[2:]), scale_factor=2.0)
        return functional.mse_loss(last(h), x)

    return step, (seen(2, 4), torch.zeros(2, 64))


# sequences -----------------------------------------------------------------------------------


@plain
def recurrent_language_model():
    words, net, out = (
        nn.Embedding(100, 64),
        nn.LSTM(64, 64, 2, batch_first=True),
        nn.Linear(64, 100),
    )

    def step(x):
        return functional.cross_entropy(out(net(words(x))[0]).flatten(0, 1), x.flatten())

    return step, (tokens(),)


@plain
def translator():
    """A GRU that reads, one that writes and looks back."""
    words = nn.Embedding(100, 64)
    reads, writes = (nn.GRU(64, 64, batch_first=True) for _ in range(2))
    out = nn.Linear(128, 100)

    def step(source, target):
        memory, last = reads(words(source))
        h, _ = writes(words(target), last)
        seen_ = torch.softmax(h @ memory.transpose(1, 2), -1) @ memory
        return functional.nll_loss(
            out(torch.cat([h, seen_], -1)).log_softmax(-1).flatten(0, 1), target.flatten()
        )

    return step, (tokens(), tokens())


@plain
def encoder_and_decoder():
    words, net = nn.Embedding(100, 64), nn.Transformer(64, 4, 1, 1, 128, batch_first=True)

    def step(source, target):
        mask = net.generate_square_subsequent_mask(32)
        found = net(words(source), words(target), tgt_mask=mask, tgt_is_causal=True)
        return functional.cross_entropy((found @ words.weight.T).flatten(0, 1), target.flatten())

    return step, (tokens(), tokens())


@plain
def waves():
    """Dilated convolutions of a sound, gated."""
    layers = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**n) for n in range(4))
    first = nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 32, 1))

    def step(x):
        h = first(x)
        for layer in layers:
            kept, gate = layer(h).chunk(2, 1)
            h = h[..., -kept.shape[-1] :] + torch.tanh(kept) * torch.sigmoid(gate)
        return functional.smooth_l1_loss(h, torch.zeros_like(h))

    return step, (torch.zeros(2, 1, 128),)


@plain
def selective_scan():
    """Mamba-like: a short convolution, decays by the input, the recurrence as running sums."""
    into, out, rates = nn.Linear(64, 256), nn.Linear(128, 64), nn.Linear(128, 128 + 2 * 16)
    conv = nn.Conv1d(128, 128, 4, padding=3, groups=128)

    def step(x):
        h, gate = into(x).chunk(2, -1)
        h = functional.silu(conv(h.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step_, b, c = rates(h).split([128, 16, 16], -1)
        decay = -functional.softplus(step_)[..., None] * torch.ones(16)
        total = decay.cumsum(1)
        state = total.exp() * ((h[..., None] * b[:, :, None]) * (-total).exp()).cumsum(1)
        found = torch.einsum("blds,bls->bld", state, c) * functional.silu(gate)
        return (x + out(found)).pow(2).mean()

    return step, (torch.zeros(2, 32, 64),)


@plain
def mixture_of_experts():
    """Two of four experts for each token, by their scores."""
    router = nn.Linear(64, 4, bias=False)
    experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
                            for _ in range(4))  # fmt: skip

    def step(x):
        scores, chosen = router(x).softmax(-1).topk(2, -1)
        shares = torch.zeros(len(x), 4).scatter(1, chosen, scores)
        made = torch.stack([expert(x) for expert in experts], 1)
        load = functional.one_hot(chosen, 4).float().mean((0, 1))
        return torch.einsum("te,ted->td", shares, made).square().mean() + load.square().sum()

    return step, (torch.zeros(64, 64),)


# graphs, tables, fields ------------------------------------------------------------------------


@plain
def graph_convolution():
    """Messages along edges, summed where they arrive, by the number of neighbours."""
    first, second = nn.Linear(32, 64), nn.Linear(64, 7)

    def step(x, edges):
        source, target = edges
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(source)))

        def spread(h):
            return (
                torch.zeros_like(h).index_add(0, target, h[source]) / degree.clamp(min=1)[:, None]
            )

        h = torch.relu(first(spread(x)))
        return functional.cross_entropy(second(spread(h)), torch.zeros(len(x), dtype=torch.long))

    return step, (torch.zeros(100, 32), torch.zeros(2, 500, dtype=torch.long))


@plain
def graph_attention():
    """Messages weighted by a softmax over each node's edges."""
    values, scores = nn.Linear(32, 64), nn.Linear(64, 1)

    def step(x, edges):
        source, target = edges
        h = values(x)
        score = functional.leaky_relu(scores(h[source]) + scores(h[target]))[:, 0]
        most = torch.zeros(len(x)).scatter_reduce(0, target, score, "amax")
        weight = (score - most[target]).exp()
        whole = torch.zeros(len(x)).scatter_add(0, target, weight)
        share = weight / whole[target]
        return torch.zeros_like(h).index_add(0, target, share[:, None] * h[source]).pow(2).sum()

    return step, (torch.zeros(100, 32), torch.zeros(2, 500, dtype=torch.long))


@plain
def recommender():
    """DLRM: bags of tables, dense features, products of pairs."""
    tables = nn.ModuleList(nn.EmbeddingBag(1000, 16, mode="sum") for _ in range(4))
    bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
    top = nn.Sequential(nn.Linear(16 + 10, 32), nn.ReLU(), nn.Linear(32, 1))

    def step(dense, sparse):
        x = bottom(dense)
        rows = torch.stack([x, *(table(one) for table, one in zip(tables, sparse, strict=True))], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))
        low = torch.tril_indices(5, 5, -1)
        found = top(torch.cat([x, pairs[:, low[0], low[1]]], 1))[:, 0]
        return functional.binary_cross_entropy_with_logits(found, torch.zeros(len(dense)))

    return step, (torch.zeros(64, 13), torch.zeros(4, 64, 8, dtype=torch.long))


@plain
def field_of_light():
    """NeRF: waves of positions, an MLP, colours along rays."""
    net = nn.Sequential(
        nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )

    def step(points):
        waves_ = points[..., None] * (2.0 ** torch.arange(10))
        colour, density = net(torch.cat([waves_.sin(), waves_.cos()], -1).flatten(-2)).split(
            [3, 1], -1
        )
        kept = torch.exp(-functional.softplus(density))
        weight = (1 - kept) * torch.cumprod(kept, 1)
        return (weight * colour.sigmoid()).sum(1).mean()

    return step, (torch.zeros(16, 32, 3),)
