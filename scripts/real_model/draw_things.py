"""Draw the sheet of things (`benchmarks/things/things.png`) from the font Noto Color Emoji (OFL 1.1).

    python scripts/real_model/draw_things.py /usr/share/fonts/truetype/noto/NotoColorEmoji.ttf
    python scripts/real_model/draw_things.py sprites.npy        # of the drawings that the real model was trained on

Each thing is a square of 64 pixels, eight a row, in the order of `mmprobe.benchmarks.things.scene.THINGS`: a channel of shades
and one of opacity. A shade is the mean of red, green and blue, stretched so that 5 % of the opaque pixels are darker than 0 and
5 % lighter than 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmprobe.benchmarks.things.scene import SHEET, SPRITE_PIXELS, THINGS

_EMOJI = """
🍎 🍌 🍋 🍓 🥕 🍅 🍐 🍒 🍍 🍄 🐕 🐈 🐎 🐄 🐖 🐇 🐘 🐟 🐦 🦆 🐸 🐢 🦁 🐻 🐍 🚗 🚌 🚲 🚆 ✈️ ⛵ 🚀 🚜 🚚 🚁 📕 ⏰ 🔑 ☂️ 🪑 📱 📷 🎸 🥁 🎩 👞 👕 ☕ 🔨 ✂️
⭐ ❤️ 🌻 🌳 🌵 🏠 🔔 🎈 🎁 🕯️ ⚽ 👑 🥚 🍞
"""
EMOJI = _EMOJI.split()
FONT_PIXELS = 109  # the font's only size
COLUMNS = 8


def draw_emoji(font_file: str) -> np.ndarray:
    """Return each thing as RGBA pixels, uint8 [thing, 64, 64, 4]."""
    font = ImageFont.truetype(font_file, FONT_PIXELS)
    drawn = []
    for emoji in EMOJI:
        canvas = Image.new("RGBA", (160, 160))
        ImageDraw.Draw(canvas).text((10, 10), emoji, font=font, embedded_color=True)
        cropped = canvas.crop(canvas.getbbox())
        side = max(cropped.size)
        square = Image.new("RGBA", (side, side))
        square.paste(cropped, ((side - cropped.width) // 2, (side - cropped.height) // 2))
        drawn.append(np.asarray(square.resize((SPRITE_PIXELS, SPRITE_PIXELS), Image.Resampling.LANCZOS)))
    return np.stack(drawn)


def make_sheet(sprites: np.ndarray) -> Image.Image:
    """Return the sheet of things from their RGBA pixels."""
    grey = sprites[..., :3].astype(float).mean(-1) / 255
    tiles = []
    for shade, opacity in zip(grey, sprites[..., 3], strict=True):
        low, high = np.quantile(shade[opacity > 127], [0.05, 0.95])
        stretched = np.clip((shade - low) / max(high - low, 0.05), 0, 1)
        tiles.append(np.stack([(stretched * 255).round().astype(np.uint8), opacity], -1))
    rows = [np.concatenate(tiles[start : start + COLUMNS], 1) for start in range(0, len(tiles), COLUMNS)]
    return Image.fromarray(np.concatenate(rows), "LA")


if __name__ == "__main__":
    assert len(EMOJI) == len(THINGS)
    source = sys.argv[1]
    make_sheet(np.load(source) if source.endswith(".npy") else draw_emoji(source)).save(SHEET, optimize=True)
    print(f"{SHEET}: {Path(SHEET).stat().st_size / 1e3:.0f} kB")
