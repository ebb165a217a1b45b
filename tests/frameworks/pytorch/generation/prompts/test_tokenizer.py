"""Token ids equal those of transformers; invalid prompts and folders are refused."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.text.tokenizer import GenerationTokenizer
from frameworks.generation.types import Conversation, Message
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer
from tests.frameworks.conftest import FolderMaker
from tests.support.models.generation_tokenizers import CHAT_TEMPLATE, Kind, write_generation_tokenizer
from tests.support.models.text_files import change_json, write_json

KINDS: tuple[Kind, ...] = ("gpt2", "llama2", "gemma")
VOCABULARY_SIZE = 512
TEXTS = (
    "the cat sat on the mat",
    " two  spaces\n\n",
    "naïve 你好 👩‍👩‍👧 e\u0301",
    "<s>special</s> <tool>",
    "",
    "\ufffd\x00",
)
TALK = Conversation((Message("system", "You run."), Message("user", "Where? </s>你")))


def transformers_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def ours(folder: Path, vocabulary_size: int = VOCABULARY_SIZE) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(folder, vocabulary_size)


class TestEncode:
    @pytest.mark.parametrize("kind", KINDS)
    def test_text_tokens_equal_transformers(self, made_once: FolderMaker, kind: Kind) -> None:
        folder = made_once(write_generation_tokenizer, kind=kind)
        tokenizer, reference = ours(folder), transformers_of(folder)
        for text in TEXTS:
            ids = tuple(reference(text)["input_ids"])
            assert tokenizer.encode(text) == ids
            assert ids[0] == 1, "the file puts it there"
            assert tokenizer.ids_of(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)
            assert tokenizer.token_strings(ids) == reference.convert_ids_to_tokens(ids)

    @pytest.mark.parametrize("kind", KINDS)
    def test_conversation_tokens_equal_transformers(self, made_once: FolderMaker, kind: Kind) -> None:
        folder = made_once(write_generation_tokenizer, kind=kind, chat_template=CHAT_TEMPLATE)
        tokenizer = ours(folder)
        assert tokenizer.has_chat_template
        messages = [{"role": message.role, "content": message.content} for message in TALK.messages]
        wanted = transformers_of(folder).apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert tokenizer.encode(TALK) == tuple(wanted)
        assert wanted.count(1) == 1, "the template puts it there, and nothing a second time"

    def test_trailing_special_tokens_are_omitted(self, made_once: FolderMaker) -> None:
        with_end = ours(made_once(write_generation_tokenizer, behind=True))
        without = ours(made_once(write_generation_tokenizer))
        for text in TEXTS:
            assert with_end.encode(text) == without.encode(text)
            assert with_end.ids_of(text, add_special_tokens=True) == [*without.encode(text), 2]

    def test_text_is_not_cut_or_padded(self, copied: FolderMaker) -> None:
        folder = copied(write_generation_tokenizer)
        trained = Tokenizer.from_file(str(folder / "tokenizer.json"))
        trained.enable_truncation(4)
        trained.enable_padding(length=50)
        trained.save(str(folder / "tokenizer.json"))
        tokenizer = ours(folder)
        assert [len(tokenizer.encode(text)) for text in ("the", "the cat sat on the mat")] == [2, 7]

    def test_token_ids_are_unchanged(self, made_once: FolderMaker) -> None:
        tokenizer = ours(made_once(write_generation_tokenizer))
        assert tokenizer.encode((5, 0, VOCABULARY_SIZE - 1)) == (5, 0, VOCABULARY_SIZE - 1)
        assert tokenizer.encode(()) == ()

    @pytest.mark.parametrize("wrong", [-1, VOCABULARY_SIZE, 2**70])
    def test_unknown_id_is_refused(self, made_once: FolderMaker, wrong: int) -> None:
        tokenizer = ours(made_once(write_generation_tokenizer))
        with pytest.raises(InvalidInput, match=rf"^prompt: expected tokens from 0 to 511, got {wrong}"):
            tokenizer.encode((5, wrong, 3))

    def test_token_beyond_model_is_refused(self, made_once: FolderMaker) -> None:
        """Return Llama 2 with a padding token that only the tokenizer has."""
        folder = made_once(write_generation_tokenizer, chat_template=CHAT_TEMPLATE)
        tool = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("<tool>")
        assert tool is not None
        tokenizer = ours(folder, vocabulary_size=tool)
        assert tokenizer.encode("the cat") == ours(folder).encode("the cat")
        with pytest.raises(
            InvalidInput, match=rf"^prompt: expected tokens from 0 to {tool - 1}, got {tool} \(<tool>\)"
        ):
            tokenizer.encode("the <tool>")
        with pytest.raises(InvalidInput, match=r"^messages: expected tokens from 0 to"):
            tokenizer.encode(Conversation((Message("user", "<tool>"),)))

    @pytest.mark.parametrize("half", ["\ud83d", "a\udc00b"])
    def test_half_surrogate_pair_is_refused(self, made_once: FolderMaker, half: str) -> None:
        tokenizer = ours(made_once(write_generation_tokenizer, chat_template=CHAT_TEMPLATE))
        with pytest.raises(InvalidInput, match=r"^prompt: not valid Unicode"):
            tokenizer.encode(half)
        with pytest.raises(InvalidInput, match=r"^messages: not valid Unicode"):
            tokenizer.encode(Conversation((Message("user", half),)))

    def test_conversation_without_template_is_refused(self, made_once: FolderMaker) -> None:
        tokenizer = ours(made_once(write_generation_tokenizer))
        assert not tokenizer.has_chat_template
        with pytest.raises(InvalidInput, match=r"^messages: expected a chat template"):
            tokenizer.encode(TALK)

    def test_content_is_in_form_of_template(self, made_once: FolderMaker) -> None:
        loop = "{% for m in messages %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endfor %}"
        tokenizer = ours(made_once(write_generation_tokenizer, chat_template=loop))
        assert tokenizer.encode(Conversation((Message("user", "the cat"),))) == tuple(
            tokenizer.ids_of("the cat", False)
        )

    def test_messages_refused_by_template_raise(self, made_once: FolderMaker) -> None:
        tokenizer = ours(made_once(write_generation_tokenizer, chat_template=CHAT_TEMPLATE))
        with pytest.raises(InvalidInput, match=r"^messages: .*no role is named stoker"):
            tokenizer.encode(Conversation((Message("stoker", "coal"),)))


class TestDecode:
    @pytest.mark.parametrize("kind", KINDS)
    def test_decoded_text_equals_transformers(self, made_once: FolderMaker, kind: Kind) -> None:
        """Folders that request a clean-up of spaces included: with BPE it would remove spaces of the caller."""
        folder = made_once(write_generation_tokenizer, kind=kind)
        tokenizer, reference = ours(folder), transformers_of(folder)
        for text in (*TEXTS, "a , b . don 't"):
            ids = tokenizer.encode(text)
            wanted = reference.decode(list(ids), skip_special_tokens=True)
            stream = tokenizer.stream(())
            assert tokenizer.decode(ids) == wanted
            assert "".join([*map(stream.push, ids), stream.flush()]) == wanted

    def test_invalid_id_is_refused(self, made_once: FolderMaker) -> None:
        tokenizer: GenerationTokenizer = ours(made_once(write_generation_tokenizer))
        for wrong in (-1, VOCABULARY_SIZE):
            with pytest.raises(InvalidInput, match=rf"^tokens: expected tokens from 0 to .*, got {wrong}"):
                tokenizer.decode((5, wrong))

    def test_id_without_token_decodes_to_nothing(self, made_once: FolderMaker) -> None:
        tokenizer = ours(made_once(write_generation_tokenizer))
        unnamed = VOCABULARY_SIZE - 1
        assert (tokenizer.decode((unnamed,)), tokenizer.text_of(unnamed)) == ("", "")
        assert tokenizer.token_strings([unnamed, VOCABULARY_SIZE]) == ["", ""]


class TestThreads:
    def test_tokenizer_works_in_threads(self, made_once: FolderMaker) -> None:
        tokenizer = ours(made_once(write_generation_tokenizer, kind="llama2", chat_template=CHAT_TEMPLATE))

        def ask(number: int) -> bool:
            text = f"the cat number {number} 你"
            for _ in range(50):
                ids = tokenizer.encode(text)
                stream = tokenizer.stream(())
                assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids) == text
                tokenizer.encode(Conversation((Message("user", text),)))
            return True

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(ask, range(8)))


class TestFolders:
    """Return the ids of the transformers class that a folder names."""

    @pytest.mark.parametrize(
        ("kind", "tokenizer_class", "model_type"),
        [
            ("llama2", "LlamaTokenizer", "llama"),
            ("llama2", "LlamaTokenizerFast", "llama"),
            ("gpt2", "LlamaTokenizer", "llama"),
            ("gpt2", "GPT2Tokenizer", "gpt2"),
            ("gpt2", "Qwen2Tokenizer", "qwen2"),
            ("gemma", "GemmaTokenizer", "gemma"),
            ("llama2", "TokenizersBackend", "mistral"),
        ],
    )
    def test_tokenizer_classes_of_families_agree(
        self, copied: FolderMaker, kind: Kind, tokenizer_class: str, model_type: str
    ) -> None:
        folder = copied(write_generation_tokenizer, kind=kind)
        change_json(folder / "tokenizer_config.json", tokenizer_class=tokenizer_class)
        write_json(folder / "config.json", {"model_type": model_type})
        tokenizer, reference = ours(folder), transformers_of(folder)
        for text in TEXTS:
            ids = tokenizer.encode(text)
            assert list(ids) == reference(text)["input_ids"]
            assert tokenizer.decode(ids) == reference.decode(list(ids), skip_special_tokens=True)

    def test_absent_file_is_named_with_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: absent.*AutoTokenizer.*save_pretrained"):
            ours(tmp_path)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"model": {"type": "None"}}', b"\xff\x00"])
    def test_broken_file_is_named(self, copied: FolderMaker, content: bytes) -> None:
        folder = copied(write_generation_tokenizer)
        (folder / "tokenizer.json").write_bytes(content)
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: not a tokenizer"):
            ours(folder)

    @pytest.mark.parametrize(
        "config",
        [[1], {"tokenizer_class": 7}, {"tokenizer_class": "CTRLTokenizer"}],
    )
    def test_unreadable_folder_is_refused(self, copied: FolderMaker, config: object) -> None:
        folder = copied(write_generation_tokenizer)
        write_json(folder / "tokenizer_config.json", config)
        with pytest.raises(InvalidModel, match=r"transformers"):
            ours(folder)

    def test_code_of_folder_is_never_run(self, copied: FolderMaker, tmp_path: Path) -> None:
        folder = copied(write_generation_tokenizer)
        ran = tmp_path / "ran"
        (folder / "tokenization_mine.py").write_text(f"open({str(ran)!r}, 'w')\n", encoding="utf-8")
        config = {"tokenizer_class": "MineTokenizer", "auto_map": {"AutoTokenizer": [None, "tokenization_mine.Mine"]}}
        change_json(folder / "tokenizer_config.json", **config)
        with pytest.raises(InvalidModel, match=r"transformers cannot read its tokenizer: .*trust_remote_code|execute"):
            ours(folder)
        assert not ran.exists()

    def test_invalid_template_is_refused_at_load(self, copied: FolderMaker) -> None:
        folder = copied(write_generation_tokenizer)
        (folder / "chat_template.jinja").write_text("{% for m in messages %}", encoding="utf-8")
        with pytest.raises(InvalidModel, match=r"the chat template cannot be compiled: .*chat_template\.jinja"):
            ours(folder)

    def test_template_in_separate_file_is_read(self, copied: FolderMaker) -> None:
        folder = copied(write_generation_tokenizer)
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
        assert ours(folder).decode(ours(folder).encode(TALK)).startswith("<|system|>\nYou run.")

    @pytest.mark.parametrize(("name", "is_there"), [("default", True), ("tool_use", False)])
    def test_default_of_several_templates_is_used(self, copied: FolderMaker, name: str, is_there: bool) -> None:
        folder = copied(write_generation_tokenizer)
        templates = [{"name": name, "template": CHAT_TEMPLATE}, {"name": "rag", "template": "{{ nothing }}"}]
        change_json(folder / "tokenizer_config.json", chat_template=templates)
        assert ours(folder).has_chat_template is is_there
