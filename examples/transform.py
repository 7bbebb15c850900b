"""A perturbation that survives image transformations (paper, section 4.1, robust over T).

The image may be mirrored, brightened, gamma-corrected or cropped before the network sees it; the
perturbation is to fool the network in all six cases. Runs on data and network inside the package.
"""

import math

import saddlepoint as sp


def main(images: int = 64) -> dict[str, float]:
    """Prints a row per rule and returns the fraction of images fooled under every transform."""
    x, y = sp.data.sample("cifar10", limit=images)
    family = sp.transforms.paper_family()
    problem = sp.Transformed(sp.models.load("cifar10-c"), family, x, y)
    ball = sp.LpBall(p=math.inf, eps=0.03)
    names = [transform.name for transform in family]
    print(f"{'rule':<9}{'all':>8}  " + "".join(f"{name:>8}" for name in names))
    found = {}
    for rule in (sp.Average(), sp.MinMax(step_size=1 / 50, gamma=4.0)):
        result = sp.apgda(problem, ball, rule=rule, steps=20, step_size=1 / 6)
        rates = sp.success_rates(problem, result.delta)
        found[type(rule).__name__] = rates.all
        each = "".join(f"{100 * rate:>7.1f}%" for rate in rates.per_domain)
        print(f"{type(rule).__name__:<9}{100 * rates.all:>7.1f}%  {each}")
    print(f"{'weights':<19}" + "".join(f"{weight:>8.2f}" for weight in result.weights.mean(dim=0)))
    return found


if __name__ == "__main__":
    main()
