"""Types of transformers' image-text-to-text models that cannot be traced, each with the reason."""

ENCODER = "an encoder reads image and text, and the decoder sees them by cross-attention"
NO_SDPA = "transformers has no sdpa attention for it, whose queries and keys are what is recorded"
OWN_ATTENTION = "its decoder has attention code of its own, which cannot be observed"
NO_ID = "its config names no visual token: a mask says where features of the image are put"
SPARSE = "its attention chooses keys before the softmax, so no row over all keys exists"
STREAMS = "its layers read and write several residual streams at once"
NOT_TRIED = "nobody has declared yet which part of an image each of its visual tokens shows"

REFUSED: dict[str, str] = {
    "blip": OWN_ATTENTION,
    "deepseek_ocr2": NOT_TRIED,
    "diffusion_gemma": "it writes blocks of tokens by diffusion, not one token after another",
    "dots3_note": SPARSE,
    "evolla": "it reads proteins, not images",
    "florence2": ENCODER,
    "fuyu": NOT_TRIED,
    "gemma3n": STREAMS,
    "git": OWN_ATTENTION,
    "glm5_next": f"{STREAMS}, and {SPARSE}",
    "got_ocr2": NO_SDPA,
    "idefics": "it sees images in layers between those of its decoder, which no declaration describes",
    "inkling2": NO_SDPA,
    "inkling_mm_model": NOT_TRIED,
    "instructblipvideo": "it reads videos only",
    "kosmos-2": NO_ID,
    "kosmos-2.5": NO_ID,
    "mistral4": "it is the text model alone, without a vision encoder",
    "mistral_large4": SPARSE,
    "muse_spark": "its layers weigh the residual stream against their updates, so nothing is added to it",
    "nemotron_h_omni": "its processor does not say where it puts visual tokens",
    "pi0": "it writes a robot's movements, not text",
    "pix2struct": ENCODER,
    "pp_chart2table": NO_SDPA,
    "pp_formulanet": ENCODER,
    "qwen4_exp": f"{STREAMS}, and {SPARSE}",
    "shieldgemma2": "it classifies images: its processor makes a prompt of its own for each policy",
    "t5gemma2": ENCODER,
    "udop": ENCODER,
    "unlimited_ocr": NOT_TRIED,
    "vision-encoder-decoder": ENCODER,
}
