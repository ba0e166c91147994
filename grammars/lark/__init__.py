"""A user's ordinary Lark grammar, translated into the mask dialect and judged by lark itself.

The way: `source` has lark load the file; `terminals` works out what each terminal matches by
longest match, with the automata of `automaton` and `elimination`; `lexer_order` says what LALR's
lexer takes first; `translation` writes it all down; `grammar` is what others use.
"""
