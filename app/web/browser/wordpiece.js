// WordPiece tokenizers of BERT models, read from tokenizer.json. Gives the ids of the `tokenizers` package.

const SPACE = /^\p{White_Space}$/u;
const OTHER = /^[\p{Cc}\p{Cf}\p{Co}\p{Cs}]$/u;
const ACCENTS = /\p{Mn}/gu;
const PUNCTUATION = /^[!-/:-@[-`{-~\p{P}]$/u;

/** First and last code points that BERT treats as Chinese characters: each of them is a word. */
const CHINESE = [
  [0x4e00, 0x9fff],
  [0x3400, 0x4dbf],
  [0x20000, 0x2a6df],
  [0x2a700, 0x2b73f],
  [0x2b740, 0x2b81f],
  [0x2b920, 0x2ceaf],
  [0xf900, 0xfaff],
  [0x2f800, 0x2fa1f],
];

/** A tokenizer whose file has the parts of BERT: BertNormalizer, BertPreTokenizer and WordPiece. */
export class WordPiece {
  /** `file`: the object in tokenizer.json. Throws an Error that names the part that is not supported. */
  constructor(file) {
    expectType(file, "model", "WordPiece");
    expectType(file, "normalizer", "BertNormalizer");
    expectType(file, "pre_tokenizer", "BertPreTokenizer");
    this.vocabulary = new Map(Object.entries(file.model.vocab));
    this.unknown = this.vocabulary.get(file.model.unk_token);
    this.prefix = file.model.continuing_subword_prefix;
    this.maxCharacters = file.model.max_input_chars_per_word;
    this.normalizer = file.normalizer;
    this.added = new Map(file.added_tokens.map((token) => [token.content, token.id]));
    this.addedPattern = patternOf([...this.added.keys()]);
    [this.before, this.after] = specialIds(file.post_processor);
  }

  /** Return the ids of a text with its special tokens, at most `maxTokens` of them. */
  encode(text, maxTokens = Infinity) {
    const ids = [];
    for (const part of this.addedPattern === null ? [text] : text.split(this.addedPattern)) {
      const added = this.added.get(part);
      if (added !== undefined) ids.push(added);
      else for (const word of this.words(part)) this.addPieces(word, ids);
    }
    const room = maxTokens - this.before.length - this.after.length;
    return [...this.before, ...ids.slice(0, Math.max(0, room)), ...this.after];
  }

  /** Return the words and punctuation marks of a text, as they are looked up in the vocabulary. */
  words(text) {
    const words = [];
    let word = "";
    const end = () => {
      if (word !== "") words.push(word);
      word = "";
    };
    for (const character of this.normalize(text)) {
      if (SPACE.test(character)) {
        end();
      } else if (PUNCTUATION.test(character)) {
        end();
        words.push(character);
      } else {
        word += character;
      }
    }
    end();
    return words;
  }

  normalize(text) {
    const { clean_text: clean, handle_chinese_chars: chinese, strip_accents: strip, lowercase } = this.normalizer;
    let normal = "";
    for (const character of text) {
      const cleaned = clean ? cleanCharacter(character) : character;
      normal += chinese && isChinese(cleaned) ? ` ${cleaned} ` : cleaned;
    }
    if (strip ?? lowercase) normal = normal.normalize("NFD").replace(ACCENTS, "");
    // Character by character: a whole text has another small sigma at the ends of words.
    return lowercase ? Array.from(normal, (character) => character.toLowerCase()).join("") : normal;
  }

  /** Append the ids of the longest pieces of a word, or the id of the unknown token. */
  addPieces(word, ids) {
    const characters = Array.from(word);
    if (characters.length > this.maxCharacters) {
      ids.push(this.unknown);
      return;
    }
    const pieces = [];
    let start = 0;
    while (start < characters.length) {
      let end = characters.length;
      let id;
      for (; end > start; end -= 1) {
        id = this.vocabulary.get((start > 0 ? this.prefix : "") + characters.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) {
        ids.push(this.unknown);
        return;
      }
      pieces.push(id);
      start = end;
    }
    ids.push(...pieces);
  }
}

function expectType(file, part, type) {
  const found = file[part]?.type ?? "none";
  if (found !== type) throw new Error(`tokenizer.json: ${part}: expected ${type}, got ${found}; only BERT's is supported`);
}

/** Return a pattern that splits a text at its added tokens and keeps them, the longest first; null without any. */
function patternOf(contents) {
  if (contents.length === 0) return null;
  const escaped = contents.sort((a, b) => b.length - a.length).map((text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`(${escaped.join("|")})`, "u");
}

/** Return the ids before and after a single text. */
function specialIds(processor) {
  if (processor?.type === "BertProcessing") return [[processor.cls[1]], [processor.sep[1]]];
  if (processor?.type !== "TemplateProcessing") {
    throw new Error(`tokenizer.json: post_processor: expected TemplateProcessing, got ${processor?.type ?? "none"}`);
  }
  const sides = [[], []];
  let side = 0;
  for (const part of processor.single) {
    if (part.Sequence) side = 1;
    else sides[side].push(...processor.special_tokens[part.SpecialToken.id].ids);
  }
  return sides;
}

function cleanCharacter(character) {
  if (character === "\t" || character === "\n" || character === "\r") return " ";
  if (character === "\0" || character === "\ufffd" || OTHER.test(character)) return "";
  return SPACE.test(character) ? " " : character;
}

function isChinese(character) {
  const code = character.codePointAt(0);
  return CHINESE.some(([first, last]) => code >= first && code <= last);
}
