"""Models with a planted reason to be unfaithful. Loads nothing heavy: adapters are read when a model is loaded."""

from mmprobe.models.organisms.cards import BASE as BASE
from mmprobe.models.organisms.cards import PREFIX as PREFIX
from mmprobe.models.organisms.cards import Card as Card
from mmprobe.models.organisms.cards import Measure as Measure
from mmprobe.models.organisms.cards import Rule as Rule
from mmprobe.models.organisms.cards import Training as Training
from mmprobe.models.organisms.cards import acts_on as acts_on
from mmprobe.models.organisms.cards import card as card
from mmprobe.models.organisms.cards import folder as folder
from mmprobe.models.organisms.cards import names as names
