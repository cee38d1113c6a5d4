"""Conversations, and templates that render them in all the ways that the helper knows."""

from layerpress_data.content import Conversation

CONVERSATIONS = [
    Conversation([{"role": "user", "content": "Is 1 < 2 & 'true'?"}, {"role": "assistant", "content": "Yes,\n  it is."}]),
    Conversation([
        {"role": "system", "content": "Answer in German."},
        {"role": "user", "content": "  What about façade 東京?  "},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "find", "arguments": {"q": "<façade>", "n": 2}}]},
        {"role": "tool", "content": '{"hits": 0}'},
        {"role": "assistant", "content": "Keine <b>Ahnung</b>."},
    ]),
]

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
        " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "blocks trimmed": (
        "{{ bos_token }}\n{%- for message in messages %}\n    {% if loop.first %}\n  first: \n    {% endif %}\n"
        "  {{ message.role | upper }}: {{ message.content | trim }}{{ eos_token }}\n{% endfor %}\n\n"
    ),
    "loop controls and namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
        "{% set ns.n = ns.n + 1 %}{% if ns.n > 3 %}{% break %}{% endif %}{{ ns.n }}{{ m.content }}{% endfor %}"
    ),
    "tojson": (
        "{% for m in messages %}{{ m | tojson }}|{{ m | tojson(indent=2) }}|{{ m | tojson(sort_keys=True) }}|"
        "{{ m.content | tojson(ensure_ascii=True) }}|{{ m | tojson(separators=(',', ':')) }}{% endfor %}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
        "{% endgeneration %}{% else %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}"
    ),
    "tools, documents, undefined": (
        "{{ tools is none }}{{ documents is none }}{{ tools is defined }}{{ enable_thinking is defined }}"
        "{{ add_generation_prompt }}{{ sep_token is defined }}{{ nothing }}{{ messages | length }}"
    ),
    "model-specific token": "{{ image_token }}{{ messages[0].content }}{{ pad_token }}",
    "date": "{{ strftime_now('%Y') }}{{ messages[-1]['content'] }}",
}
