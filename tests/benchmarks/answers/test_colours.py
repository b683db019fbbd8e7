"""Colours that answers claim of things: sentences as models write them, with their right readings."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.colours import compare_colours, name_hue, read_colours

ASKED = "What color is the car?"
# Written before any rule had read them: 48 of 54 claims were read rightly, 6 unread, and one more was read wrongly, which the rules
# then learned (`The red hot dog stand`).
SENTENCES = [
(None,"The image shows a red fire truck parked outside a fire station. The truck has a white ladder on top.",{"truck":"red"}),
(None,"In this photo, a small white dog with a blue collar is sitting on a green bench in a park.",{"dog":"white","bench":"green"}),
(None,"A man wearing a black suit and a striped tie is holding a black umbrella.",{"umbrella":"black"}),
(None,"There is a yellow taxi in the foreground, and several other cars behind it.",{"car":"yellow"}),
(None,"The bus in the picture is predominantly blue, with some advertising on the side.",{"bus":"blue"}),
(None,"The vase on the left side of the table is white. The vase on the right is blue.",{}),
(None,"A fluffy orange cat is curled up on a gray couch.",{"cat":"orange","couch":"gray"}),
(None,"A woman in a red dress is riding a black horse along the beach.",{"horse":"black"}),
(None,"The kitchen features a white refrigerator, a silver oven and a wooden dining table.",{"refrigerator":"white","oven":"silver"}),
(None,"A large brown teddy bear sits on the bed next to a pink pillow.",{"teddy bear":"brown"}),
(None,"The skateboard has a black deck and orange wheels.",{}),
(None,"A red and blue kite is flying high in the sky.",{}),
(None,"A bright yellow school bus is driving down the street.",{"bus":"yellow"}),
(None,"The suitcase appears to be dark blue.",{}),
(None,"The umbrella is pink with white polka dots.",{}),
(None,"The traffic light is currently showing green.",{}),
(None,"On the table there are a white plate, a blue mug, and a red apple.",{"cup":"blue","apple":"red"}),
(None,"The motorcycle parked on the sidewalk is red and black.",{}),
(None,"The brown horse stands next to the white horse.",{}),
(None,"The chair is made of brown leather.",{}),
(None,"Two men stand in front of a blue airplane.",{"airplane":"blue"}),
(None,"The surfboard that the woman is carrying is yellow.",{}),
(None,"The laptop is silver, the keyboard is black, and the mouse is white.",{"laptop":"silver","keyboard":"black","mouse":"white"}),
(None,"A black-and-white cow grazes in a green field.",{}),
(None,"A person holding a red frisbee in a park with green grass.",{"frisbee":"red"}),
(None,"The boat is painted white with a red stripe along the side.",{}),
(None,"The train is a modern, silver passenger train.",{"train":"silver"}),
(None,"This image features a green John Deere truck.",{}),
(None,"A red stop sign is mounted on a metal pole.",{"stop sign":"red"}),
(None,"A cyclist wearing a yellow jersey rides a red bike.",{"bicycle":"red"}),
(None,"The white cat's eyes are green.",{"cat":"white"}),
(None,"The toilet lid is white and the sink is beige.",{"sink":"beige"}),
(None,"The little girl holds a purple toothbrush.",{"toothbrush":"purple"}),
(None,"The orange juice sits in a clear glass on a brown table.",{"dining table":"brown"}),
(None,"A blue and white train, a red car and a gray truck.",{"car":"red","truck":"gray"}),
(None,"It looks like the sedan is silver.",{"car":"silver"}),
(None,"The backpack on the ground is olive green.",{"backpack":"green"}),
(None,"A dark-colored car is parked under the tree.",{}),
(None,"The red hot dog stand is closed.",{}),
(None,"The person on the green motorcycle is wearing a white helmet.",{"motorcycle":"green"}),
(None,"The car on the billboard behind the blue bus is white.",{"bus":"blue","car":"white"}),
(None,"She drinks from a red cup of coffee.",{"cup":"red"}),
(None,"A wine glass filled with red wine is on the table.",{}),
(None,"The table is covered with a white tablecloth.",{}),
(None,"The clock on the tower has a white face and black hands.",{}),
(None,"The bananas are yellow and the apple is green.",{"apple":"green"}),
(None,"The elephant is gray; its tusks are white.",{"elephant":"gray"}),
(None,"The couch, which is blue, is next to a white chair.",{"couch":"blue","chair":"white"}),
(None,"The bowl contains red tomatoes.",{}),
(None,"A green apple-shaped clock hangs on the wall.",{}),
(ASKED,"The car in the image is red.",{"car":"red"}),
(ASKED,"The color of the car is blue.",{"car":"blue"}),
(ASKED,"Blue",{"car":"blue"}),
(ASKED,"It's white.",{"car":"white"}),
(ASKED,"The car is a shade of green.",{"car":"green"}),
(ASKED,"Silver/gray",{}),
(ASKED,"The car appears to be black.",{}),
(ASKED,"Based on the image, the car is dark blue.",{"car":"blue"}),
(ASKED,"**Answer:** Red",{"car":"red"}),
(ASKED,"I cannot determine the color of the car.",{}),
(ASKED,"The car has a red body with a white roof.",{}),
(ASKED,"Yellow, like a taxi.",{"car":"yellow"}),
(ASKED,"It is a red car.",{"car":"red"}),
(ASKED,"The answer is green.",{"car":"green"}),
(ASKED,"<think>Maybe blue? I think the car is blue.</think>\nThe car is blue.",{"car":"blue"}),
(ASKED,"Red. Wait, it is actually orange.",{}),
(ASKED,"The car is mostly white but the doors are black.",{"car":"white"}),
(ASKED,"light blue",{"car":"blue"}),
(ASKED,"The car's exterior is painted in a bright yellow.",{}),
(ASKED,"The vehicle is red.",{}),
("What color is the cat lying on the couch?","Black.",{"cat":"black"}),
("What color is the couch the cat is lying on?","Black.",{}),
("What is the color of the woman's umbrella?","Red",{}),
("What colour is the frisbee that the dog catches?","Yellow",{}),
("Is the car red or blue?","Red.",{}),
("What color shirt is the man wearing?","Red",{}),
("What color is the top of the car?","Red",{}),
("What color is the traffic light in the image?","Green",{"traffic light":"green"}),

]  # fmt: skip


def read(question, text):
    return {claim.name: name_hue(claim.colour) for claim in read_colours(text, question or "")}


@pytest.mark.parametrize(("question", "text", "claims"), SENTENCES)
def test_no_colour_is_read_wrongly(question, text, claims):
    assert read(question, text).items() <= claims.items()


def test_most_colours_are_read():
    found = sum(len(read(question, text)) for question, text, _ in SENTENCES)
    assert found >= 0.9 * sum(len(claims) for _, _, claims in SENTENCES)


def test_colours_are_the_same_others_or_neither():
    same = (
        ("grey", "gray"),
        ("Dark Red", "red"),
        ("light blue", "dark blue"),
        ("golden", "gold"),
        ("violet", "purple"),
        ("navy", "navy"),
    )
    others = (
        ("red", "blue"),
        ("dark green", "red"),
        ("gray", "brown"),
        ("teal", "red"),
        ("orange", "red"),
        ("black", "white"),
    )
    neither = (
        ("navy", "blue"),
        ("teal", "cyan"),
        ("silver", "gray"),
        ("dark blue", "black"),
        ("light gray", "white"),
        ("spotted", "red"),
    )
    for expected, pairs in ((True, same), (False, others), (None, neither)):
        for first, second in pairs:
            assert compare_colours(first, second) is compare_colours(second, first) is expected, (
                first,
                second,
            )
