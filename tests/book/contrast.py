"""What can be told apart, and read."""

from matplotlib.colors import to_rgb


def contrast(color, ground="#ffffff"):
    """WCAG's contrast of two colours: 1 (none) to 21; text needs 4.5, marks need 3."""

    def light(name):
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(name)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((light(color), light(ground)))
    return (high + 0.05) / (low + 0.05)
