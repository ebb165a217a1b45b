"""The classes of transformers that read images and text, and generate text: those that are served, and the others."""

SERVED = frozenset(
    {
        *("AriaForConditionalGeneration", "AyaVisionForConditionalGeneration", "Blip2ForConditionalGeneration"),
        *("ChameleonForConditionalGeneration", "Cohere2VisionForConditionalGeneration"),
        *("CohereCompassForConditionalGeneration", "Cosmos3EdgeForConditionalGeneration"),
        "Cosmos3OmniForConditionalGeneration",
        *("DeepseekOcr2ForConditionalGeneration", "DeepseekVLForConditionalGeneration"),
        *("DeepseekVLHybridForConditionalGeneration", "Dots3NoteForConditionalGeneration"),
        *("Emu3ForConditionalGeneration", "Ernie4_5_VLMoeForConditionalGeneration"),
        *("Exaone4_5_ForConditionalGeneration", "FastVlmForConditionalGeneration", "FuyuForCausalLM"),
        *("Gemma3ForConditionalGeneration", "Gemma3nForConditionalGeneration", "Gemma4ForConditionalGeneration"),
        *("Gemma4UnifiedForConditionalGeneration", "GitForCausalLM", "Glm46VForConditionalGeneration"),
        *("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration", "Glm5NextForConditionalGeneration"),
        *("GlmOcrForConditionalGeneration", "GotOcr2ForConditionalGeneration"),
        *("Granite4VisionForConditionalGeneration", "GraniteDoclingForConditionalGeneration"),
        *("HunYuanVLForConditionalGeneration", "HyperCLOVAXVisionV2ForConditionalGeneration"),
        *("Idefics2ForConditionalGeneration", "Idefics3ForConditionalGeneration", "IdeficsForVisionText2Text"),
        *("Inkling2ForConditionalGeneration", "InklingForConditionalGeneration"),
        *("InstructBlipForConditionalGeneration", "InternVLForConditionalGeneration"),
        *("JanusForConditionalGeneration", "Kimi_K25ForConditionalGeneration", "Kosmos2ForConditionalGeneration"),
        *("Kosmos2_5ForConditionalGeneration", "Lfm2VlForConditionalGeneration", "Lfm3VlForConditionalGeneration"),
        *("LightOnOcrForConditionalGeneration", "Llama4ForConditionalGeneration"),
        *("LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration"),
        *("LlavaNextVideoForConditionalGeneration", "LlavaOnevisionForConditionalGeneration"),
        *("MiniCPMOcrForConditionalGeneration", "MiniCPMV4_6ForConditionalGeneration"),
        *("MiniCPMV4_7ForConditionalGeneration", "MiniMaxM3SparseForConditionalGeneration"),
        *("Mistral3ForConditionalGeneration", "MistralLarge4ForConditionalGeneration"),
        *("MllamaForConditionalGeneration", "Molmo2ForConditionalGeneration"),
        *("MuseGlimmerForConditionalGeneration", "MuseSparkForConditionalGeneration"),
        *("NemotronH_Omni_Reasoning_V3", "Ovis2ForConditionalGeneration", "PaddleOCRVLForConditionalGeneration"),
        *("PaliGemmaForConditionalGeneration", "PerceptionLMForConditionalGeneration"),
        *("QianfanOCRForConditionalGeneration", "Qwen2VLForConditionalGeneration"),
        *("Qwen2_5OmniThinkerForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        *("Qwen3OmniMoeThinkerForConditionalGeneration", "Qwen3VLForConditionalGeneration"),
        *("Qwen3VLMoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"),
        *("Qwen3_5MoeForConditionalGeneration", "Qwen4ExpForConditionalGeneration"),
        *("SmolVLMForConditionalGeneration", "Step3p7ForConditionalGeneration"),
        *("UnlimitedOcrForConditionalGeneration", "VideoLlama3ForConditionalGeneration"),
        *("VideoLlavaForConditionalGeneration", "VipLlavaForConditionalGeneration"),
    }
)
BASES = frozenset(
    name.removesuffix("ForConditionalGeneration") + "Model"
    for name in SERVED
    if name.endswith("ForConditionalGeneration")
)
"""The classes of the same models without a head."""
PAGE_RETRIEVERS = frozenset({"ColModernVBertForRetrieval", "ColPaliForRetrieval", "ColQwen2ForRetrieval"})
"""The classes that have a vector for each token of a query, and of the image of a page."""
_ENCODER_DECODER = "it has an encoder and a decoder of texts"
NOT_SERVED: dict[str, str] = {
    **dict.fromkeys(
        (
            *("BlipForConditionalGeneration", "Florence2ForConditionalGeneration"),
            *("Pix2StructForConditionalGeneration", "PPFormulaNetForConditionalGeneration"),
            *("T5Gemma2ForConditionalGeneration", "UdopForConditionalGeneration", "VisionEncoderDecoderModel"),
        ),
        _ENCODER_DECODER,
    ),
    "DiffusionGemmaForBlockDiffusion": "it writes blocks of tokens by diffusion",
    "EvollaForProteinText2Text": "it reads proteins, not images",
    "InstructBlipVideoForConditionalGeneration": "it reads videos, not images",
    "PI0ForConditionalGeneration": "it gives the actions of a robot, not text",
}
"""Those that are refused by name at load, with the reason."""
