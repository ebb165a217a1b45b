"""Small chat templates with tools, in the shape of the families' own."""

from frameworks.core.settings.entries import ToolFormat

HERMES = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n" }}
    {{- "</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content.split('</think>')[-1] }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
LLAMA3 = """\
{{- bos_token }}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\n<|eot_id|>" }}
{%- for message in messages %}
    {%- if loop.first and tools %}
        {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
        {{- 'Respond in the format {"name": function name, ' }}
        {{- '"parameters": dictionary of argument name and its value}. Do not use variables.\\n\\n' }}
        {%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}
        {{- message.content + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' + (tool_call.arguments | tojson) + '}<|eot_id|>' }}
    {%- elif message.role in ["tool", "ipython"] %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (message.content | tojson) + '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {%- if tools and loop.last %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}{{- tool | tojson + (", " if not loop.last else "") }}{%- endfor %}
            {{- "][/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message.content + "[/INST]" }}
    {%- elif message.tool_calls is defined %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- '{"name": "' + tool_call.function.name + '", "arguments": ' + tool_call.function.arguments | tojson }}
            {{- ', "id": "' + tool_call.id + '"}' + (", " if not loop.last else "]" + eos_token) }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + ', "call_id": "' + message.tool_call_id }}
        {{- '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- " " + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""
MISTRAL_ARGS = """\
{{- bos_token }}
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- elif message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- else %}
        {{- message.content }}
        {%- for tool in message.tool_calls %}
            {{- '[TOOL_CALLS]' + tool.function.name + '[ARGS]' + (tool.function.arguments | tojson) }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
"""
PYTHONIC = """\
{{- bos_token }}
{%- if tools %}
    {{- 'You MUST put it in the format of [func_name1(params_name1=params_value1, params_name2=params_value2...), ' }}
    {{- 'func_name2(params)]\\n' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|header_start|>' + message.role + '<|header_end|>\\n\\n' + message.content }}
    {%- if message.tool_calls %}
        {{- '<|python_start|>[' }}
        {%- for tool_call in message.tool_calls %}
            {{- tool_call.function.name + '(' }}
            {%- for name in tool_call.function.arguments %}
                {{- name + '=' + (tool_call.function.arguments[name] | tojson) + (', ' if not loop.last else '') }}
            {%- endfor %}
            {{- ')' + (', ' if not loop.last else ']<|python_end|>') }}
        {%- endfor %}
    {%- endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|header_start|>assistant<|header_end|>\\n\\n' }}{%- endif %}
"""
ALWAYS_THINKING = HERMES.replace("enable_thinking is defined and enable_thinking is false", "true").replace(
    "\\n\\n</think>\\n\\n", "\\n"
)
"""The prompt ends with `<think>`, as those of DeepSeek R1 and QwQ."""

TEMPLATES: dict[ToolFormat, str] = {
    "hermes": HERMES,
    "llama3_json": LLAMA3,
    "mistral": MISTRAL,
    "mistral_args": MISTRAL_ARGS,
    "pythonic": PYTHONIC,
}
# Tokens that the families' own tokenizers have; `True`: special ones, which have no text.
TOKENS: dict[ToolFormat, dict[str, bool]] = {
    "hermes": {"<tool_call>": False, "</tool_call>": False, "<think>": False, "</think>": False},
    "llama3_json": {"<|python_tag|>": True},
    "mistral": {"[TOOL_CALLS]": True},
    "mistral_args": {"[TOOL_CALLS]": True, "[ARGS]": True},
    "pythonic": {"<|python_start|>": True, "<|python_end|>": True},
}
