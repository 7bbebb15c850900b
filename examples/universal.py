"""One perturbation for a whole group of images (paper, section 4.1, universal perturbations).

Each group of five CIFAR-10 images shares a single perturbation, and it counts only if all five are
misclassified. Runs on the images and the network inside the package.
"""

import math

import saddlepoint as sp


def main(images: int = 100, size: int = 5) -> dict[str, float]:
    """Prints a row per rule and returns the fraction of groups fooled as a whole."""
    x, y = sp.data.sample("cifar10", limit=images)
    groups, labels = sp.data.group(x, y, size=size)
    problem = sp.Universal(sp.models.load("cifar10-c"), groups, labels)
    ball = sp.LpBall(p=math.inf, eps=0.03)
    print(f"{len(groups)} groups of {size}, one perturbation each, linf {ball.eps}")
    print(f"{'rule':<9}{'whole groups':>14}{'images':>9}")
    found = {}
    for rule in (sp.Average(), sp.MinMax(step_size=1 / 20, gamma=4.0)):
        result = sp.apgda(problem, ball, rule=rule, steps=20, step_size=1 / 6)
        rates = sp.success_rates(problem, result.delta)
        found[type(rule).__name__] = rates.all
        print(f"{type(rule).__name__:<9}{100 * rates.all:>13.1f}%{100 * rates.mean:>8.1f}%")
    hardest = result.weights[0].argmax()
    print(f"In the first group image {hardest + 1} was the hardest: weights ", end="")
    print(", ".join(f"{weight:.2f}" for weight in result.weights[0]))
    return found


if __name__ == "__main__":
    main()
