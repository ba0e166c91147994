"""Guessing tokens and having one step check several: no result changes, only how soon it is there.

A drafter guesses what a text says next, the step computes the guesses with the token before them,
and sampling goes through their logits in order for as long as it says what was guessed (Leviathan
et al. 2023; Chen et al. 2023). Since a draw depends on seed, branch and position alone, what is
said is token for token what it would be without guesses, of sampled and constrained texts too.
"""
