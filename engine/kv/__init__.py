"""KV bookkeeping: which page holds what, who may read it, who may write it. No torch in here."""
