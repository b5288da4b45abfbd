"""Plain PyTorch models of pictures, small: functions that return (step, its arguments).

The step returns a loss. Called where tensors have no memory; without PyTorch, who imports this is
skipped. `plain_models.py` has the others.
"""

from support.torch_steps import functional, nn, torch

PLAIN = {}


def plain(make):
    """One of `PLAIN`, by its name."""
    PLAIN[make.__name__] = make
    return make


def seen(batch=2, channels=3, size=32):
    return torch.zeros(batch, channels, size, size)


def tokens(batch=2, length=32):
    return torch.zeros(batch, length, dtype=torch.long)


def classified(net, x):
    """A step of a classifier."""
    labels = torch.zeros(len(x), dtype=torch.long)
    return lambda x: functional.cross_entropy(net(x), labels), (x,)


class Added(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.layers(x)


class Joined(nn.Module):
    """[x, f(x)] by channels."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return torch.cat([x, self.layers(x)], 1)


class Gated(nn.Module):
    """x times a gate of its channels' means."""

    def __init__(self, channels):
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 8, 1), nn.SiLU(),
            nn.Conv2d(8, channels, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x):
        return x * self.gate(x)


def ending(channels):
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)


# pictures ------------------------------------------------------------------------------------


@plain
def vgg():
    conv = nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
    head = nn.Flatten(), nn.Linear(32 * 256, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 10)
    return classified(nn.Sequential(*conv, nn.MaxPool2d(2), *head), seen())


@plain
def residual_network():
    block = Added(
        nn.Conv2d(64, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64),
    )  # fmt: skip
    stem = nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.BatchNorm2d(64), nn.ReLU()
    return classified(nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), block, *ending(64)), seen())


@plain
def dense_network():
    layers = [Joined(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, 16, 3, padding=1))
              for n in (16, 32, 48)]  # fmt: skip
    last = nn.Conv2d(64, 32, 1), nn.AvgPool2d(2)
    return classified(nn.Sequential(nn.Conv2d(3, 16, 3), *layers, *last, *ending(32)), seen())


@plain
def mobile_network():
    block = Added(
        nn.Conv2d(16, 64, 1), nn.BatchNorm2d(64), nn.Hardswish(),
        nn.Conv2d(64, 64, 5, padding=2, groups=64), nn.BatchNorm2d(64), nn.Hardswish(),
        Gated(64), nn.Conv2d(64, 16, 1), nn.BatchNorm2d(16),
    )  # fmt: skip
    return classified(nn.Sequential(nn.Conv2d(3, 16, 3, 2), block, *ending(16)), seen())


@plain
def vision_transformer():
    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 64, 8, stride=8)
            self.first, self.places = (nn.Parameter(torch.zeros(1, n, 64)) for n in (1, 17))
            layer = nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True,
                                               norm_first=True)  # fmt: skip
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.places
            return self.head(self.layers(x)[:, 0])

    return classified(Vit(), seen())


@plain
def mixing_network():
    """Tokens and channels by turns."""

    class Turned(nn.Sequential):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    def mlp(width, wide):
        return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    net = nn.Sequential(
        Added(nn.LayerNorm(64), Turned(mlp(16, 32))), Added(nn.LayerNorm(64), mlp(64, 128)),
        nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip
    return classified(net, torch.zeros(2, 16, 64))


@plain
def variational_autoencoder():
    down = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ELU(), nn.Flatten(), nn.Linear(4096, 16))
    up = nn.Sequential(
        nn.Linear(8, 4096), nn.Unflatten(1, (16, 16, 16)), nn.Upsample(scale_factor=2),
        nn.Conv2d(16, 3, 3, padding=1), nn.Sigmoid(),
    )  # fmt: skip

    def step(x):
        mean, log_variance = down(x).chunk(2, 1)
        made = up(mean + torch.randn_like(mean) * (0.5 * log_variance).exp())
        apart = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        return functional.binary_cross_entropy(made, x) + apart

    return step, (seen(),)


@plain
def two_towers():
    """Pictures and words that belong together, by their angles."""
    pictures = nn.Sequential(nn.Conv2d(3, 32, 8, stride=8), nn.GELU(), *ending(32)[:2])
    words, scale = nn.EmbeddingBag(100, 32, mode="mean"), nn.Parameter(torch.ones(()))

    def step(x, text):
        one, other = (functional.normalize(each, dim=-1) for each in (pictures(x), words(text)))
        found = scale.exp() * one @ other.T
        both = torch.arange(len(x))
        return functional.cross_entropy(found, both) + functional.cross_entropy(found.T, both)

    return step, (seen(8), tokens(8))
