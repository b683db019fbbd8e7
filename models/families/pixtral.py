"""Mistral 3 and LightOnOCR: a Pixtral encoder reads each image in its own shape, in one view."""

from mmprobe.models.families.base import Family, build_sized_views

MISTRAL3 = Family(name="mistral3", model_types=("mistral3",), views=build_sized_views, shares_prefixes=True)
LIGHTON_OCR = Family(
    name="lighton_ocr", model_types=("lighton_ocr",), views=build_sized_views, shares_prefixes=True
)
