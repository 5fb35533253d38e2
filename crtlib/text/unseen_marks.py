"""The characters that nobody sees, in one table for all that reads, compares and screens text.

>>> import re
>>> re.sub(UNSEEN_MARK, "", "An\\u200bn\\u034fa\\u3164\\x07")
'Anna'
"""

UNSEEN_MARK = (
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""A pattern of one such character: what Unicode calls default ignorable (no width, directions,
joiners, selectors of a form, fillers, tags), the marks around an annotation, and control characters
other than white space. The table is written out, not asked of a library, because registries keep
hashes of text without these characters: another version of Unicode must not change them.

Guarantee:
    It has all that Unicode has. Test:
    ``tests/text/test_writing.py::test_the_table_of_unseen_marks_is_the_one_of_unicode``.
"""
