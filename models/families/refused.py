"""Types of transformers' image-text-to-text models that cannot be traced, each with the reason."""

SEPARATE_ENCODER = "it reads the text in an encoder, and its decoder sees images and text by cross-attention"
NO_SDPA = "transformers gives it no sdpa attention, whose queries and keys mmprobe reads"
EMBEDDED = "its images are not tokens of the prompt: features of a whole image are put in their place"
INDEXED = "its sparse attention chooses keys before the softmax, so a row over all keys does not exist"

REFUSED: dict[str, str] = {
    "blip": SEPARATE_ENCODER,
    "florence2": SEPARATE_ENCODER,
    "pix2struct": SEPARATE_ENCODER,
    "udop": SEPARATE_ENCODER,
    "t5gemma2": SEPARATE_ENCODER,
    "vision-encoder-decoder": SEPARATE_ENCODER,
    "pp_formulanet": SEPARATE_ENCODER,
    "got_ocr2": NO_SDPA,
    "pp_chart2table": NO_SDPA,
}
