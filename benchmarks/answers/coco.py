"""The 80 object categories of COCO, and the everyday words for them.

The lists are ours. They leave out words that often name something else: a bare `glass`, `bag`, `light`,
`sign`, `board`, `screen` or `computer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Span = tuple[int, int]

# Category: its other words, singular. Plurals are added below.
_SYNONYMS = {
    "person": (
        "man, woman, boy, girl, child, kid, baby, toddler, infant, teenager, adult, guy, lady, gentleman, "
        "human, human being, pedestrian, passenger, player, batter, catcher, umpire, referee, athlete, "
        "skater, skateboarder, surfer, skier, snowboarder, rider, biker, cyclist, bicyclist, motorcyclist, "
        "driver, worker, chef, waiter, waitress, officer, policeman, policewoman, soldier, tourist, swimmer, "
        "spectator, bystander, mother, father, son, daughter, brother, sister, bride, groom, farmer, student"
    ),
    "bicycle": "bike, pushbike",
    "car": "automobile, sedan, suv, taxi, cab, hatchback, convertible, jeep, minivan, van",
    "motorcycle": "motorbike, moped, scooter, motor bike, motor cycle, dirt bike",
    "airplane": "plane, aeroplane, aircraft, jet, airliner, jetliner, air plane",
    "bus": "minibus, double decker, double decker bus, school bus, tour bus",
    "train": "locomotive, tram, subway train, streetcar, train car, passenger train",
    "truck": "pickup, pickup truck, pick up truck, lorry, fire truck, firetruck, semi truck",
    "boat": (
        "ship, canoe, kayak, sailboat, sail boat, yacht, ferry, raft, rowboat, row boat, dinghy, speedboat, "
        "motorboat, gondola, vessel"
    ),
    "traffic light": "traffic signal, stoplight, stop light, trafficlight",
    "fire hydrant": "hydrant",
    "stop sign": "stopsign",
    "parking meter": "",
    "bench": "park bench",
    "bird": (
        "duck, goose, pigeon, seagull, gull, parrot, owl, eagle, hawk, swan, crow, sparrow, rooster, hen, "
        "ostrich, penguin, flamingo, pelican, dove, finch"
    ),
    "cat": "kitten, kitty, feline, pussycat",
    "dog": "puppy, pup, canine, doggy, poodle, terrier, retriever, bulldog, corgi",
    "horse": "pony, foal, stallion, mare, colt, donkey, mule",
    "sheep": "lamb, ewe, goat",
    "cow": "cattle, bull, calf, ox, heifer, bison, buffalo",
    "elephant": "",
    "bear": "polar bear, grizzly, grizzly bear, panda, panda bear, brown bear, black bear",
    "zebra": "",
    "giraffe": "",
    "backpack": "rucksack, knapsack, back pack",
    "umbrella": "parasol",
    "handbag": "purse, hand bag, shoulder bag, tote, tote bag",
    "tie": "necktie, bow tie, bowtie",
    "suitcase": "luggage, suit case, briefcase, trolley case",
    "frisbee": "flying disc, flying disk, frisby",
    "skis": "ski",
    "snowboard": "snow board",
    "sports ball": (
        "ball, soccer ball, tennis ball, basketball, football, baseball, volleyball, beach ball, soccerball, "
        "golf ball"
    ),
    "kite": "",
    "baseball bat": "bat",
    "baseball glove": "mitt, baseball mitt",
    "skateboard": "skate board, longboard",
    "surfboard": "surf board, boogie board, bodyboard, paddleboard, paddle board",
    "tennis racket": "racket, racquet, tennis racquet",
    "bottle": "water bottle, wine bottle, beer bottle",
    "wine glass": "wineglass, glass of wine, champagne glass, champagne flute, goblet",
    "cup": "mug, teacup, coffee cup, tea cup, coffee mug, tumbler, drinking glass, glass of water",
    "fork": "",
    "knife": "",
    "spoon": "tablespoon, teaspoon",
    "bowl": "",
    "banana": "",
    "apple": "",
    "sandwich": "burger, hamburger, cheeseburger, panini, sub sandwich",
    "orange": "tangerine, mandarin, clementine",
    "broccoli": "",
    "carrot": "",
    "hot dog": "hotdog, frankfurter",
    "pizza": "pepperoni pizza",
    "donut": "doughnut",
    "cake": "cupcake, cheesecake, birthday cake, wedding cake",
    "chair": "armchair, arm chair, stool, high chair, highchair, recliner, seat, office chair",
    "couch": "sofa, loveseat, love seat, settee",
    "potted plant": "plant, houseplant, house plant, potted flower, flower pot, flowerpot",
    "bed": "bunk bed, bunkbed",
    "dining table": "table, desk, coffee table, kitchen table, picnic table",
    "toilet": "commode, urinal, toilet bowl, toilet seat",
    "tv": "television, monitor, television set, tv set, tv screen, computer screen, flat screen",
    "laptop": "laptop computer, notebook computer, macbook",
    "mouse": "computer mouse",
    "remote": "remote control, remote controller, tv remote, game controller, wii remote",
    "keyboard": "computer keyboard",
    "cell phone": "phone, cellphone, mobile phone, smartphone, smart phone, telephone, iphone",
    "microwave": "microwave oven",
    "oven": "stove, stovetop, stove top, stove top oven, cooker",
    "toaster": "",
    "sink": "washbasin, wash basin, kitchen sink, bathroom sink",
    "refrigerator": "fridge, freezer, refridgerator",
    "book": "novel, textbook, paperback",
    "clock": "wall clock, alarm clock, clock face, timepiece",
    "vase": "",
    "scissors": "scissor, pair of scissors, shears",
    "teddy bear": "teddy, stuffed bear, stuffed animal, stuffed toy, plush toy, plushie",
    "hair drier": "hair dryer, hairdryer, hairdrier, blow dryer, blow drier",
    "toothbrush": "tooth brush",
}
SYNONYMS: dict[str, tuple[str, ...]] = {
    category: tuple(words.split(", ")) if words else () for category, words in _SYNONYMS.items()
}
COCO_CATEGORIES: tuple[str, ...] = tuple(SYNONYMS)

_IRREGULAR = {
    "person": ("people", "persons"),
    "man": ("men",),
    "woman": ("women",),
    "child": ("children",),
    "gentleman": ("gentlemen",),
    "policeman": ("policemen",),
    "policewoman": ("policewomen",),
    "human being": ("human beings",),
    "goose": ("geese",),
    "sheep": ("sheep",),
    "calf": ("calves",),
    "ox": ("oxen",),
    "mouse": ("mice", "mouses"),
    "computer mouse": ("computer mice",),
    "knife": ("knives",),
    "glass of wine": ("glasses of wine",),
    "glass of water": ("glasses of water",),
    "pair of scissors": ("pairs of scissors",),
}
_NO_PLURAL = {"cattle", "luggage", "aircraft", "broccoli", "skis", "scissors", "shears", "bison"}

# Phrases with a word of the lists that name something else, or the category after `=`.
_OTHER_PHRASES = """apple juice, apple pie, apple tree, banana bread, banana tree, baseball cap, baseball
field, baseball game, baseball diamond, baseball uniform, basketball court, bed frame, bed sheet, bed
spread, bird cage, bird feeder, bird house, boat house, book case, book shelf, bottle cap, bottle opener,
bus stop, bus station, bus lane, cake stand, car park, car seat, carrot cake=cake, cat food, chair lift,
clock tower=clock, dog collar, dog food, dog house, dog leash, dog park, football field, horse carriage,
kite surfing, knife block, laptop bag, mouse pad, orange juice, orange tree, oven mitt, phone booth, phone
case, pizza box, pizza cutter, plant pot, power plant, remote area, remote location, remote place, remote
village, ski boot, ski goggle, ski jacket, ski lift, ski pole, ski resort, ski slope, table cloth, table
lamp, table tennis, truck bed, flower bed, river bed, telephone pole, toilet brush, toilet paper, toilet
roll, train platform, train station, train track, truck driver=person, bus driver=person, taxi
driver=person, car driver=person, bird s eye, bear in mind, sheep dog=dog, clock radio, sink cabinet, bed
room"""

_WORD = re.compile(r"[^\W\d_]+")
_OTHER_COLOURS = frozenset(
    _WORD.findall(
        "red yellow green cyan blue purple black white gray grey brown pink violet gold silver beige tan "
        "teal turquoise magenta"
    )
)
_BEFORE_A_FRUIT = frozenset(
    _WORD.findall("a an the one single each every this that another sliced whole peeled fresh ripe juicy of")
)
_AFTER_A_FRUIT = frozenset(
    _WORD.findall(
        "is was are were has had have and or on in at by near next from to with that which beside behind "
        "under above between inside of for into but moved removed changed disappeared vanished shifted "
        "turned became sits lies sat lay remains stays appears looks seems can no not missing gone slice "
        "slices peel half now also"
    )
)


def make_plurals(phrase: str) -> tuple[str, ...]:
    """Return the plural forms of an English noun phrase that ends in its noun."""
    if phrase in _IRREGULAR:
        return _IRREGULAR[phrase]
    if phrase in _NO_PLURAL:
        return ()
    if re.search(r"(?:s|x|z|ch|sh)$", phrase):
        return (phrase + "es",)
    if re.search(r"[^aeiou]y$", phrase):
        return (phrase[:-1] + "ies",)
    return (phrase + "s",)


def _make_phrases() -> dict[str, str | None]:
    """Return phrase -> category for all phrases, singular and plural; None for no category."""
    table: dict[str, str | None] = {}
    for item in _OTHER_PHRASES.replace("\n", " ").split(", "):
        phrase, _, category = item.strip().partition("=")
        for form in (phrase, *make_plurals(phrase)):
            table[form] = category or None
    for category, synonyms in SYNONYMS.items():
        for phrase in (category, *synonyms):
            for form in (phrase, *make_plurals(phrase)):
                table[form] = category
    return table


PHRASES: dict[str, str | None] = _make_phrases()
_MAX_WORDS = max(phrase.count(" ") for phrase in PHRASES) + 1
FIRST_WORDS = {phrase.split(" ")[0] for phrase in PHRASES if " " in phrase}
_WORD_SEPARATORS = frozenset((" ", "-", "  ", "\n", "'", "’"))
_PREPOSITION = re.compile(
    r"\b(?:of|on|in|at|with|near|by|beside|behind|under|above|next to|in front of|from)\b"
)


def find_phrases(
    text: str, table: Mapping[str, str | None], first_words: frozenset[str] | set[str]
) -> list[tuple[str, Span]]:
    """Return the phrases of a table in a text, as (category, span), in order.

    The longest phrase wins. Phrases do not overlap. Of two adjacent phrases (`dog bowl`, `baby elephant`,
    `square table`) only the last counts.
    """
    words = [(match.group().lower(), match.start(), match.end()) for match in _WORD.finditer(text)]
    phrases: list[tuple[str, Span]] = []
    index = 0
    follows_phrase = False
    while index < len(words):
        word, start, end = words[index]
        length = 0
        category = None
        if word in first_words:
            phrase = word
            phrase_end = end
            for offset in range(1, min(_MAX_WORDS, len(words) - index)):
                next_word, next_start, next_end = words[index + offset]
                if text[phrase_end:next_start] not in _WORD_SEPARATORS:
                    break
                phrase = f"{phrase} {next_word}"
                phrase_end = next_end
                if phrase in table:
                    length, category, end = offset + 1, table[phrase], phrase_end
        if not length and word in table:
            length, category = 1, table[word]
            if word == "orange" and category == "orange" and not _is_fruit(words, index):
                length = 0
        if length and category is not None:
            if follows_phrase and phrases and text[phrases[-1][1][1] : start] in (" ", "-"):
                phrases.pop()
            phrases.append((category, (start, end)))
        follows_phrase = bool(length and category is not None)
        index += length or 1
    return phrases


def _is_fruit(words: list[tuple[str, int, int]], index: int) -> bool:
    """Return whether `orange` names the fruit: `an orange and a plum`, not `an orange and white cat`."""
    after = [word for word, _, _ in words[index + 1 : index + 3]]
    if index and words[index - 1][0] not in _BEFORE_A_FRUIT:
        return False
    if not after:
        return True
    if after[0] in ("and", "or") and len(after) > 1 and after[1] in _OTHER_COLOURS:
        return False
    return after[0] in _AFTER_A_FRUIT


def find_objects(text: str) -> list[tuple[str, Span]]:
    """Return the COCO objects that a text names, in order.

    Args:
        text: English text in any case. Singular, plural and hyphens are understood.

    Returns:
        (category, (start, end)) of each mention. `text[start:end]` is the word.

    Example:
        >>> [category for category, _ in find_objects("Two puppies and a hot dog on a wooden desk")]
        ['dog', 'hot dog', 'dining table']
    """
    return find_phrases(text, PHRASES, FIRST_WORDS)


def find_category(phrase: str) -> str | None:
    """Return the COCO category of a word or noun phrase, or None.

    Example:
        >>> [find_category(phrase) for phrase in ("the red cars on the table", "a slice of pizza", "curtain")]
        ['car', 'pizza', None]
    """
    bare = phrase.strip().lower().replace("_", " ")
    if bare in SYNONYMS:
        return bare
    head = _PREPOSITION.split(bare, maxsplit=1)[0]
    objects = find_objects(head) or find_objects(bare)[:1]
    return objects[-1][0] if objects else None
