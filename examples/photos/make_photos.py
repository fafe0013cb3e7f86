"""Photos of leaves for five devices, by class: in the shade, indoors and in the sun."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("door-pi", "garden-pi", "roof-pi", "shed-pi", "window-pi")
COLOURS = {"healthy": (60, 150, 60), "mildew": (140, 160, 140), "rust": (150, 110, 50)}
LIGHT = (0.7, 1.0, 1.3)


def leaf(random, colour, light, size=80):
    """A photo: a disc in the class's colour, never at the same place, spots on it, and noise over all."""
    y, x = np.mgrid[:size, :size]
    centre, radius = random.uniform(0.35 * size, 0.65 * size, 2), random.uniform(size / 4.5, size / 2.9)
    inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
    pixels = np.full((size, size, 3), (110, 100, 90), dtype=float)
    pixels[inside] = np.array(colour) + random.normal(0, 15, 3)
    pixels[inside & (random.random((size, size)) < 0.15)] -= 40
    return np.clip(light * pixels + random.normal(0, 25, pixels.shape), 0, 255).astype(np.uint8)


def write_photos(folder, names=NAMES, each=12, size=80, lacking=("window-pi", "rust")):
    """A folder of photos by class for each device; one of them has never seen one class."""
    random = np.random.default_rng(0)
    for number, name in enumerate(names):
        for kind, colour in COLOURS.items():
            if (name, kind) == lacking:
                continue
            (folder / name / kind).mkdir(parents=True)
            for k in range(each):
                photo = leaf(random, colour, LIGHT[number % 3], size)
                Image.fromarray(photo).save(folder / name / kind / f"{k:03}.png")
    return folder


if __name__ == "__main__":
    write_photos(Path(sys.argv[1]))
