"""Rules that keep a network plastic, each from its paper, for the studies in this folder.

All parameters lie in one vector, so that a step is a few operations on it, however many tensors there are. Noise comes
from torch's own generator, which a study seeds.
"""

import torch


class Flat(torch.optim.Optimizer):
    """Base: the parameters as one vector ``theta``, of which they become views, and memory of its size.

    A subclass names its ``memory`` and says in `move` what a step does with a gradient.
    """

    memory = ()

    def __init__(self, params, settings):
        super().__init__(params, settings)
        if len(self.param_groups) > 1:
            raise ValueError("These rules take one group of parameters.")
        self.params = self.param_groups[0]["params"]
        with torch.no_grad():
            self.theta = torch.cat([p.reshape(-1) for p in self.params])
            parts = self.theta.split([p.numel() for p in self.params])
            for p, part in zip(self.params, parts, strict=True):
                p.data = part.view_as(p)
        self.start = self.theta.clone()
        self.count = 0
        self.held = {name: torch.zeros_like(self.theta) for name in self.memory}
        self.state[self.params[0]] = self.held

    def gradient(self):
        return torch.cat([p.grad.reshape(-1) for p in self.params])

    def move(self, g, **settings):
        """Move ``theta`` by the gradient ``g``, which may be overwritten."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        settings = {name: value for name, value in self.param_groups[0].items() if name != "params"}
        self.move(self.gradient(), **settings)


class L2Init(Flat):
    """Gradient descent on the loss plus strength |theta - start|^2.

    Kumar, Marklund, Van Roy: "Maintaining Plasticity in Continual Learning via Regenerative Regularization".
    """

    def __init__(self, params, lr, strength=1e-3):
        super().__init__(params, {"lr": lr, "strength": strength})

    def move(self, g, lr, strength):
        # theta - lr (g + 2 strength (theta - start))
        self.theta.lerp_(self.start, 2 * lr * strength).sub_(g, alpha=lr)


class FlatAdam(Flat):
    """Base: steps of Adam."""

    memory = ("m", "v")

    def adapt(self, g, lr, betas, eps):
        """Move ``theta`` by Adam's step for the gradient ``g``."""
        m, v = self.held["m"], self.held["v"]
        m.lerp_(g, 1 - betas[0])
        v.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
        root = torch.sqrt(v).div_((1 - betas[1] ** self.count) ** 0.5).add_(eps)
        self.theta.addcdiv_(m, root, value=-lr / (1 - betas[0] ** self.count))


class L2InitAdam(FlatAdam):
    """Adam on the loss plus strength |theta - start|^2; that is how the paper runs it."""

    def __init__(self, params, lr, strength=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "strength": strength, "betas": betas, "eps": eps})

    def move(self, g, lr, strength, betas, eps):
        # The difference first: Adam would blow up what rounding leaves of weights that have not moved.
        self.adapt(g.add_(self.theta - self.start, alpha=2 * strength), lr, betas, eps)


class HareTortoise(FlatAdam):
    """Adam moves the hare; the tortoise is a slow mean of it, to which the hare goes back every so many steps.

    Lee et al.: "Slow and Steady Wins the Race: Maintaining Plasticity with Hare and Tortoise Networks":
    tortoise <- decay tortoise + (1 - decay) hare, and every ``every`` steps hare <- tortoise. The hare is the
    network that learns and is judged; Adam keeps its memory, as in the authors' code.
    """

    memory = ("m", "v", "tortoise")

    def __init__(self, params, lr, every=1000, decay=0.999, betas=(0.9, 0.999), eps=1e-8):
        settings = {"lr": lr, "every": every, "decay": decay, "betas": betas, "eps": eps}
        super().__init__(params, settings)
        self.held["tortoise"].copy_(self.theta)

    def move(self, g, lr, every, decay, betas, eps):
        tortoise = self.held["tortoise"]
        self.adapt(g, lr, betas, eps)
        tortoise.lerp_(self.theta, 1 - decay)
        if self.count % every == 0:
            self.theta.copy_(tortoise)


class SpectralAdam(FlatAdam):
    """Adam on the loss plus strength (sum of (sigma^2 - 1)^2 over matrices, and of |b|^4 over vectors).

    Lewandowski et al.: "Learning Continually by Spectral Regularization", with their k = 2. sigma is the largest
    singular value, from one power iteration for each step; the vectors that it goes by are kept. A kernel of a
    convolution is a matrix with one row for each channel. Vectors of ones at the start, the scales of
    normalizations, are pulled to one, other vectors to zero.
    """

    def __init__(self, params, lr, strength=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "strength": strength, "betas": betas, "eps": eps})
        self.rows = [
            torch.nn.functional.normalize(torch.randn(len(p)).to(p), dim=0) if p.ndim > 1 else None
            for p in self.params
        ]
        self.targets = [float(p.ndim < 2 and bool((p == 1).all())) for p in self.params]

    def move(self, g, lr, strength, betas, eps):
        parts = g.split([p.numel() for p in self.params])
        for i, (p, part) in enumerate(zip(self.params, parts, strict=True)):
            if p.ndim > 1:
                W = p.flatten(1)
                right = torch.nn.functional.normalize(W.T @ self.rows[i], dim=0)
                left = W @ right
                sigma = left.norm()
                self.rows[i] = left / sigma.clamp_min(1e-12)
                slope = torch.outer(self.rows[i], right).mul_(4 * sigma * (sigma**2 - 1)).flatten()
            else:
                away = p - self.targets[i]
                slope = 4 * away.square().sum() * away
            part.add_(slope, alpha=strength)
        self.adapt(g, lr, betas, eps)


class LayerNormAdamW(torch.optim.AdamW):
    """AdamW, on a network whose hidden full layers it normalizes: layer normalization and weight decay.

    Lyle et al.: "Disentangling the Causes of Plasticity Loss in Neural Networks". `watch` normalizes the outputs of
    all full layers but the last, before their nonlinearity, without scales and shifts of its own.
    """

    def __init__(self, params, lr, weight_decay=1e-2):
        super().__init__(params, lr=lr, weight_decay=weight_decay)
        self.watched = False

    def watch(self, model, loss=None):
        """Normalize a network."""
        layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        for layer in layers[:-1]:
            layer.register_forward_hook(_normalized)
        self.watched = True

    def step(self, closure=None):
        if not self.watched:
            raise RuntimeError("Call watch(model) before the first step.")
        return super().step(closure)


def _normalized(layer, inputs, output):
    return torch.nn.functional.layer_norm(output, output.shape[-1:])


class ShrinkPerturb(Flat):
    """Gradient descent; then the weights shrink and get a little noise, at each step.

    Ash and Adams: "On Warm-Starting Neural Network Training": theta <- (1 - shrink) theta + noise N(0, 1).
    """

    def __init__(self, params, lr, shrink=1e-5, noise=1e-4):
        super().__init__(params, {"lr": lr, "shrink": shrink, "noise": noise})

    def move(self, g, lr, shrink, noise):
        self.theta.sub_(g, alpha=lr).mul_(1 - shrink)
        self.theta.add_(torch.randn_like(self.theta), alpha=noise)


class UPGD(Flat):
    """Utility-based perturbed gradient descent, with the first-order utility on a global scale.

    Elsayed and Mahmood: "Addressing Loss of Plasticity and Catastrophic Forgetting in Continual Learning",
    Alg. 1. A weight's utility is the running mean of -g theta: what the loss would gain by losing it. Weights
    move, by gradient and noise, as far as they are useless:
    theta <- (1 - lr decay) theta - lr (g + noise xi) (1 - sigmoid(corrected utility / largest utility)).
    """

    memory = ("utility",)

    def __init__(self, params, lr, noise=1e-2, beta=0.999, decay=0.0):
        super().__init__(params, {"lr": lr, "noise": noise, "beta": beta, "decay": decay})

    def move(self, g, lr, noise, beta, decay):
        utility = self.held["utility"]
        utility.mul_(beta).addcmul_(g, self.theta, value=beta - 1)
        scale = utility.max().mul_(1 - beta**self.count)  # of the mean that is not yet corrected
        # A network that is silent at first has no utility.
        scale = torch.where(scale == 0, 1.0, scale)
        free = (utility / scale).neg_().sigmoid_()  # 1 - sigmoid(u)
        g.add_(torch.randn_like(g), alpha=noise).mul_(free)
        if decay:
            self.theta.mul_(1 - lr * decay)
        self.theta.sub_(g, alpha=lr)


class VariationalNewton(Flat):
    """Improved variational online Newton (IVON) with one sample: a Gaussian of the weights, learnt by its gradient.

    Shen et al.: "Variational Learning is Effective for Large Deep Networks", Alg. 1. The gradient g is taken at
    a draw theta = m + sigma e with sigma = 1 / sqrt(size (h + decay)). Then

        h_hat = g e / sigma,    g_bar = beta1 g_bar + (1 - beta1) g,
        h <- beta2 h + (1 - beta2) h_hat + (1 - beta2)^2 (h - h_hat)^2 / (2 (h + decay)),
        m <- m - lr (g_bar / (1 - beta1^t) + decay m) / (h + decay).

    A study's stream judges the first outputs of a step. They shall be those of the mean, so a step asks for the
    loss twice: at the mean, which is what it returns, and at the draw.
    """

    memory = ("g", "h")

    def __init__(self, params, lr, size=1e4, begin=1.0, betas=(0.9, 0.9999), decay=1e-3):
        settings = {"lr": lr, "size": size, "begin": begin, "betas": betas, "decay": decay}
        super().__init__(params, settings)
        self.held["h"].fill_(begin)

    @torch.no_grad()
    def step(self, closure):
        self.count += 1
        group, theta = self.param_groups[0], self.theta
        held, h, decay = self.held["g"], self.held["h"], group["decay"]
        beta1, beta2 = group["betas"]
        with torch.enable_grad():
            loss = closure()
        precision = h + decay
        sigma = precision.mul(group["size"]).rsqrt_()
        noise = torch.randn_like(theta)
        mean = theta.clone()
        theta.addcmul_(sigma, noise)
        with torch.enable_grad():
            closure()
        theta.copy_(mean)
        g = self.gradient()
        held.lerp_(g, 1 - beta1)
        gap = g.mul_(noise).div_(sigma).sub_(h)  # h_hat - h
        h.add_(gap, alpha=1 - beta2).addcdiv_(gap.square_(), precision, value=(1 - beta2) ** 2 / 2)
        pulled = held.div(1 - beta1**self.count).add_(theta, alpha=decay)
        theta.addcdiv_(pulled, torch.add(h, decay), value=-group["lr"])
        return loss
