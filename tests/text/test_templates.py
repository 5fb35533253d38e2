"""Templates keep the texts, their secrets and their order, or are refused."""

import pytest
import transformers

from crtlib.text import customersim, data_points, templates
from crtlib.text.records import Corpus, Dialogue, Secret, Turn
from crtlib.text.templates import CANDIDATE_TEMPLATES, Template

CORPUS = customersim.simulate_corpus(12, 0, "rich")


@pytest.mark.parametrize("unit", ["turn", "dialogue"])
@pytest.mark.parametrize("template", CANDIDATE_TEMPLATES.values(), ids=lambda t: t.name)
def test_secrets_and_words_survive_every_template(template, unit):
    plain = data_points.make_points(CORPUS, unit)
    points = templates.render_points(CORPUS, unit, template)
    assert [p.id for p in points] == [p.id for p in plain]
    for ours, theirs in zip(points, plain, strict=True):
        values = [[p.text[s.start : s.end] for s in p.secrets] for p in (ours, theirs)]
        assert values[0] == values[1]
        words = [[p.text[a:b] for a, b in p.spoken_spans] for p in (ours, theirs)]
        assert words[0] == words[1]


def test_the_template_of_speakers_is_what_it_always_was():
    """Also as Jinja, as it is written beside a model."""
    jinja = Template("jinja", templates.SPEAKER_TEMPLATE.source)
    for unit in data_points.POINT_UNITS:
        same = templates.render_points(CORPUS, unit, templates.SPEAKER_TEMPLATE)
        assert (
            same
            == data_points.make_points(CORPUS, unit)
            == templates.render_points(CORPUS, unit, jinja)
        )


TURNS = (Turn("USR", " I am Ann ", (Secret("name", 6, 9),)), Turn("SYS", "hello"))
ANN = Corpus("ann", (Dialogue("d", "ann", TURNS),))
LOOP = "{% for m in messages %}"
REFUSED = {
    "drops the text of turn 1": "{{ messages[-1].content }}",
    "repeats the text of turn 1": LOOP + "{{ m.content }}{{ m.content }}{% endfor %}",
    "changes the order of turns": "{{ messages[1].content }}{{ messages[0].content }}",
    "TypeError: no loader": "{% include 'x' %}",
    "SecurityError: access to attribute": "{{ messages.__class__.__mro__ }}",
    "TemplateError: no": "{{ raise_exception('no') }}",
    "TemplateSyntaxError": "{% for %}",
    "ZeroDivisionError": "{{ 1 / 0 }}",
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_template_that_is_not_one_is_refused_in_one_line(message):
    with pytest.raises(ValueError, match="template=x: ") as error:
        templates.render_points(ANN, "dialogue", Template("x", REFUSED[message]))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_template_that_strips_moves_the_spans():
    source = LOOP + "[{{ m.role }}] {{ m.content | trim }}{% endfor %}"
    point = templates.render_points(ANN, "dialogue", Template("trim", source))[0]
    assert point.text == "[user] I am Ann[assistant] hello"
    assert point.text[point.secrets[0].start : point.secrets[0].end] == "Ann"


def test_a_chat_template_is_rendered_as_transformers_does(tmp_path):
    source = (
        "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}"
        "{{ eos_token if m['role'] == 'assistant' else '\n' }}\n{% endfor %}"
    )
    from tokenizers import Tokenizer, models

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = source
    messages = [{"role": templates.chat_role(t.speaker), "content": t.text} for t in TURNS]
    theirs = tokenizer.apply_chat_template(messages, tokenize=False)
    ours = templates.render_points(ANN, "dialogue", templates.template_by_name("chat", tokenizer))[
        0
    ].text
    assert "<s>" + ours + "</s>" == theirs.rstrip()
    with pytest.raises(ValueError, match="template='chat': the tokenizer has no chat template"):
        templates.template_by_name("chat")
    with pytest.raises(ValueError, match="template='caht': must be one of"):
        templates.template_by_name("caht")
    with pytest.raises(ValueError, match=r"template=nowhere\.j2: no such file"):
        templates.template_by_name("nowhere.j2")
