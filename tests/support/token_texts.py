"""Texts that tokenizers cut in different ways: scripts, numbers, runs of spaces, signs, code, emoji, commands, noise."""

import random
import unicodedata

WRITTEN = [
    'Hello world', ' leading', 'trailing ', '  two  spaces  ', '\n\nnew\n lines\r\n', '\t\ttabs\t',
    '3 33 333 3333 33333 333333 1234567890', '3.14, 1e-9, 0x1F, 1,000,000',
    "I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL",
    "don't DON'T Don\u2019t", 'na\xefve caf\xe9 r\xe9sum\xe9 \xc5ngstr\xf6m',
    '\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u041a\u0430\u043a \u0434\u0435\u043b\u0430?',
    '\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e',
    '\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\u30ab\u30bf\u30ab\u30ca', '\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4',
    '\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645',
    '\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd',
    '\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01',
    '\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e',
    '\u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f\u17a2\u17b6\u1785\U0001f601',
    '\U0001f680 (normal) \U0001f636\u200d\U0001f32b\ufe0f (multiple emojis concatenated) \u2705 \U0001f999\U0001f999',
    '\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f3f3\ufe0f\u200d\U0001f308',
    '------======= !!!!!!?????? ``````', 'def f(x):\n    return x ** 2  # comment\n\n\nclass A:\n\tpass\n',
    'for (int i = 0; i < n; ++i) { a[i] += b[i] * c->d; }', '<html><body class="x">&amp;</body></html>',
    'https://example.com/path?query=1&b=%20#frag', 'user@example.org', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa',
    'abababababababababababababababababababababababababababababababababababababababab',
    '======================================================================', '                                 ',
    '\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n', '\t\t\t\t\t\t\t\t\t', 'x\xa0y\u2003z\u3000w', 'zero\u200bwidth',
    '\u03a9\u2248\xe7\u221a\u222b\u02dc\xb5\u2264\u2265\xf7', '\u2460\u2461\u2462 \u2177 \xbd \xb2', '\ufb01 \ufb02 \ufb03',
    '\U0001d518\U0001d52b\U0001d526\U0001d520\U0001d52c\U0001d521\U0001d522', '\u0130stanbul \u0131I', '\xdf \u1e9e SS',
    'CamelCaseWords andHTTPServer2Go', 'snake_case_name __init__', 'C:\\Users\\name\\file.txt', '$100 \u20ac50 \xa320 \xa53000',
    '50% off; 3/4; 10:30pm', '\xabquoted\xbb \u201edeutsch\u201c \u201ccurly\u201d \u2018single\u2019', '\u2026\u2014\u2013-',
    '\x01\x02 control \x7f', 'e\u0301 combining', 'q\u0323\u0307', 'A\u030a', 'end with newline\n',
    '<|im_start|>user\nhi<|im_end|>\n', '<s>[INST] x [/INST]</s>', '<|endoftext|>', '<bos><start_of_turn>user',
    'text<|im_end|> more', '[PAD5]', '<0x0A>', '\u2581 under', '\u0120 byte', '\\n literal', '{"json": [1, 2, {"k": null}]}',
    "SELECT * FROM t WHERE a='b';", '1+1=2', 'a,b;c:d', "Mr. O'Neill's", 'THE QUICK BROWN FOX',
    'the quick brown fox jumps over the lazy dog', '\xc0\xc9\xce\xd5\xdc \xe0\xe9\xee\xf5\xfc', 'Vi\u1ec7t Nam Ti\u1ebfng',
    '\u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8 \u10d4\u10dc\u10d0', '\u12a0\u121b\u122d\u129b',
    '\u1403\u14c4\u1483\u144e\u1450\u1466', '\u180e mongolian', '\ufeffbom', '\u05d01\u05d12\u05d23',
    '\u0663\u0664\u0665 \u0967\u0968\u0969 \u56db\u4e94', '12abc34', 'abc123def456', '    indented\n        more\n',
    'a  b   c    d     e', '\r\r\n\n\r', '?!?!?!', '(((nested)))', '#hashtag @mention', '~!@#$%^&*()_+{}|:"<>?',
    '`code` ```block```', '*bold* _it_ ~~s~~', 'x=1;y=2;;z', '\u2028line\u2029sep', 'tail space \n ', ' \n \n \t \n',
]
LETTERS = "abcdefghij ABC  0123456789\n\t.,'\"-_\u00e9\u00df\u6f22\u5b57\u304b\u306a\u03a9\u044f\U0001f600\U0001f680\u0301\u200d"


def texts(count=220, normal=True):
    """The written texts and random ones. `normal`: in Unicode's composed form, as llama.cpp takes every text to be."""
    generator = random.Random(5)
    random_texts = ["".join(generator.choices(LETTERS, k=generator.randint(1, 40))) for _ in range(count - len(WRITTEN))]
    return [unicodedata.normalize("NFC", text) if normal else text for text in WRITTEN + random_texts]
