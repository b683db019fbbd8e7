"""Colours that answers claim of things: sentences as models write them, with their right readings."""

from __future__ import annotations

import pytest

from mmprobe.benchmarks.answers.colours import compare_colours, name_hue, read_colours

ASKED = "What color is the car?"
# Three lists, each written before the rules had read it, after which they learned. At first they read 48 of the 54 claims of the first
# list rightly and one more wrongly (`The red hot dog stand`), 34 of 44 of the second and three more wrongly (`a golden retriever`),
# and 31 of 37 of the third and none wrongly. The other claims were unread.
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


(None,"The image depicts a busy city street with a double-decker bus. The bus is red and has an advertisement on its side. A silver car is driving in front of it.",{"bus":"red","car":"silver"}),
(None,"A young boy in a blue shirt is holding a yellow tennis racket on a green court.",{"tennis racket":"yellow"}),
(None,"In the image, there is a black cat sitting on top of a white refrigerator.",{"cat":"black","refrigerator":"white"}),
(None,"This is a close-up of a blue bird perched on a branch.",{"bird":"blue"}),
(None,"A gray elephant walks past a brown giraffe.",{"elephant":"gray","giraffe":"brown"}),
(None,"The scene features a wooden bench painted in green, with a red backpack on it.",{"backpack":"red"}),
(None,"Several people are standing near a white boat, and one of them holds a pink umbrella.",{"boat":"white","umbrella":"pink"}),
(None,"A plate with a green salad, an orange, and a brown loaf of bread.",{}),
(None,"The fire hydrant is yellow with a blue top.",{}),
(None,"A bathroom with white toilet, white sink and blue towels.",{"toilet":"white","sink":"white"}),
(None,"The bedroom has a large bed with a red blanket.",{}),
(None,"There is a brown couch against the wall, a black TV, and a glass vase with purple flowers.",{"couch":"brown","tv":"black"}),
(None,"A man riding a red motorcycle down the road while a blue truck follows.",{"motorcycle":"red","truck":"blue"}),
(None,"The dog, a golden retriever, is lying on a beige couch.",{"couch":"beige"}),
(None,"I see a cow that is brown and white.",{}),
(None,"The frisbee is bright orange.",{"frisbee":"orange"}),
(None,"A woman with a black purse talks on a white cell phone.",{"handbag":"black","cell phone":"white"}),
(None,"The bike leaning against the red brick wall is green.",{"bicycle":"green"}),
(None,"A pile of green bananas beside a red bowl.",{"bowl":"red"}),
(None,"The sheep are white.",{}),
(None,"There isn't a red car in the image; the car is blue.",{"car":"blue"}),
(None,"The kite resembles a blue dragon.",{}),
(None,"A white and gold vase stands on the mantel.",{}),
(None,"The clock has a white face.",{}),
(None,"The car on the right is black, while the car on the left is white.",{}),
(None,"A stuffed bear wearing a red sweater sits in a blue chair.",{"chair":"blue"}),
(None,"The horse's mane is black.",{}),
(None,"The black horse's mane is long.",{}),
(None,"An old red pickup truck rusts in the field.",{"truck":"red"}),
(None,"A train with yellow and blue stripes.",{}),
(None,"A yellow train with blue stripes.",{}),
(None,"The apple on the desk next to the black keyboard is green.",{"keyboard":"black","apple":"green"}),
(None,"A black keyboard and mouse are on the desk.",{"keyboard":"black"}),
(None,"The man in the red car is waving.",{"car":"red"}),
(None,"A red-haired woman holds a cup.",{}),
(None,"The suitcase is covered in blue fabric.",{}),
(None,"The walls are yellow, and the oven is stainless steel.",{}),
(None,"The zebra is black and white.",{}),
(None,"A green traffic light hangs over the road.",{"traffic light":"green"}),
(None,"The surfer carries a white surfboard under his arm.",{"surfboard":"white"}),
(None,"The pizza has green peppers and black olives.",{}),
(None,"A cat with green eyes lies on a dark gray laptop.",{"laptop":"gray"}),
("What color is the bus?","The bus is yellow.",{"bus":"yellow"}),
("What color is the bus?","yellow",{"bus":"yellow"}),
("What color is the bus?","It's a yellow school bus.",{"bus":"yellow"}),
("What color is the bus?","The bus is red, white, and blue.",{}),
("What color is the bus?","Mostly green.",{"bus":"green"}),
("What color is the bus?","Green with some white.",{}),
("What color is the bus?","A bright red color.",{"bus":"red"}),
("What color is the bus?","The bus's color is purple.",{"bus":"purple"}),
("What color is the bus?","It seems to be white.",{}),
("What color is the bus?","There is no bus in the image.",{}),
("What color is the bus?","The color of the bus in the image is orange.",{"bus":"orange"}),
("What color is the bus?","Dark green",{"bus":"green"}),
("What color is the bus?","Final answer: blue",{"bus":"blue"}),
("What color is the bus?","The bus is the color of a lemon.",{}),
("What color is the bus?","Reddish-brown",{}),
("What color is the cat's collar?","Red.",{}),
("What is the color of the sky above the bus?","Blue.",{}),
("What color is the light on the bus?","Red",{}),
("What color is the bus behind the car?","White",{"bus":"white"}),
("What color is the ball the boy kicks?","White",{"sports ball":"white"}),

(None,"The photo captures a brown dog running across a sandy beach with a blue frisbee in its mouth.",{"dog":"brown","frisbee":"blue"}),
(None,"A black sedan and a white van are parked side by side.",{}),
(None,"The central object is a green vase holding several pink roses.",{"vase":"green"}),
(None,"An orange truck drives along a wet road, followed by a silver motorcycle.",{"truck":"orange","motorcycle":"silver"}),
(None,"On the counter, a black microwave sits beside a red toaster.",{"microwave":"black","toaster":"red"}),
(None,"Here we can see a small gray bird standing on a brown fence.",{"bird":"gray"}),
(None,"A child with a purple backpack is waiting for a yellow bus.",{"backpack":"purple","bus":"yellow"}),
(None,"The airplane is white with a red tail.",{}),
(None,"The train's front is yellow.",{}),
(None,"The woman's handbag is brown.",{}),
(None,"There's a black-and-white photo of a horse on the wall.",{}),
(None,"The chairs are black, and the table is white.",{"dining table":"white"}),
(None,"The bed has a blue comforter and white pillows.",{}),
(None,"A man in a green hat cuts a white cake.",{"cake":"white"}),
(None,"The truck is a faded blue.",{}),
(None,"A brown bear stands in the river.",{}),
(None,"A red double-decker bus passes a black taxi.",{"bus":"red","car":"black"}),
(None,"A pink cell phone lies on a white keyboard.",{"cell phone":"pink","keyboard":"white"}),
(None,"The tie he wears is striped in red and blue.",{}),
(None,"The red of the stop sign has faded.",{}),
(None,"The skis leaning on the wall are blue.",{}),
(None,"A boy flies a yellow kite near a red barn.",{"kite":"yellow"}),
(None,"The cow in the middle is black; the others are brown.",{"cow":"black"}),
(None,"The refrigerator, which stands next to the stove, is white.",{}),
(None,"Two zebras and one gray elephant drink at the river.",{"elephant":"gray"}),
(None,"A cat lies on a red rug beside a brown chair.",{"chair":"brown"}),
(None,"The scissors have orange handles.",{}),
(None,"A blue car, possibly a sedan, is parked on the left.",{}),
(None,"The black cat is sitting, the white cat is sleeping.",{}),
(None,"A large white sailboat with blue sails is on the lake.",{}),
(None,"She holds a bright green umbrella.",{"umbrella":"green"}),
(None,"The toothbrush is green and the cup is pink.",{"toothbrush":"green","cup":"pink"}),
(None,"The bench is brown, made of wood.",{"bench":"brown"}),
(None,"Some red apples are in a white bowl.",{"bowl":"white"}),
(None,"A bottle of red wine stands next to a yellow banana.",{"banana":"yellow"}),
(None,"The image is in black and white and shows a car.",{}),
("What color is the umbrella?","The umbrella is black.",{"umbrella":"black"}),
("What color is the umbrella?","The umbrella in the image is a light blue color.",{"umbrella":"blue"}),
("What color is the umbrella?","Pink",{"umbrella":"pink"}),
("What color is the umbrella?","The umbrella is multicolored.",{}),
("What color is the umbrella?","It is primarily purple.",{"umbrella":"purple"}),
("What color is the umbrella?","The umbrella's color is yellow.",{"umbrella":"yellow"}),
("What color is the umbrella?","Answer: yellow.",{"umbrella":"yellow"}),
("What color is the umbrella?","The image does not show an umbrella.",{}),
("What color is the umbrella?","Blue and yellow",{}),
("What color is the umbrella?","The umbrella being held by the woman is red.",{"umbrella":"red"}),
("What color is the umbrella?","A dark shade of blue.",{}),
("What color is the umbrella?","Gray.\n\nThe umbrella is held by a man.",{"umbrella":"gray"}),
("What color is the dog's frisbee?","Red",{}),
("What color is the dog holding the frisbee?","White",{"dog":"white"}),
("What is the color of the truck in front of the bus?","Red.",{"truck":"red"}),
("What color are the man's skis?","Red.",{}),
("Which fruit is on the table, and what color is the bowl?","Blue",{"bowl":"blue"}),
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


@pytest.mark.parametrize(
    ("place", "image"),
    [
        ("right picture", 1),
        ("second photograph", 1),
        ("left image", 0),
        ("5th frame", 4),
        ("two pictures", None),
    ],
)
def test_the_image_of_a_colour_has_the_names_that_claims_know(place, image):
    (claim,) = read_colours(f"The bus in the {place} is red.", "What color is the bus?")
    assert (claim.image, claim.name, claim.colour) == (image, "bus", "red")


@pytest.mark.parametrize(
    "question",
    [
        "What color is the bus?",
        "Which colour does the bus have?",
        "In the image, what color does the bus have?",
    ],
)
def test_a_colour_alone_answers_a_question_for_one_things_colour(question):
    assert [(claim.name, claim.colour) for claim in read_colours("Red.", question)] == [("bus", "red")]
