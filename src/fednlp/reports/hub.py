"""Names that the Hugging Face Hub and its library have for what a model card states."""

HUB_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "mcc": "matthews_correlation",
    "f1": "f1",
    "exact_match": "exact_match",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "rouge_l": "rouge",
    "bleu": "bleu",
    "perplexity": "perplexity",
}
"""The Hub's name of each metric that it knows."""

TASKS = {
    "text-classification": ("text-classification", "SequenceClassification", "to tell {labels} labels apart"),
    "text-regression": ("text-classification", "SequenceClassification", "to give a score"),
    "token-classification": (
        "token-classification",
        "TokenClassification",
        "to give each word one of {labels} tags",
    ),
    "question-answering": (
        "question-answering",
        "QuestionAnswering",
        "to find the answers to questions in a text",
    ),
    "sequence-to-sequence": ("text-generation", "Seq2SeqLM", "to make a text from a text"),
    "text-generation": ("text-generation", "CausalLM", "to make a text from a text"),
    "causal-lm": ("text-generation", "CausalLM", "to go on with a text"),
    "masked-lm": ("fill-mask", "MaskedLM", "to fill in masked words"),
    "prompt-classification": ("fill-mask", "MaskedLM", "to tell {labels} labels apart by a word in a cloze"),
}
"""Of each task: what the Hub calls it, its auto class, and what it was fine-tuned to do."""

_PIPELINES = ("text-classification", "token-classification")


def use(task: str) -> str:
    """Return Python that loads a model of a task."""
    if task in _PIPELINES:
        return (
            "from transformers import pipeline\n\n"
            f'ask = pipeline("{task}", model="path/to/this/folder")\nprint(ask("Some text"))'
        )
    head = TASKS.get(task, ("", "", ""))[1]
    return (
        f"from transformers import AutoModel{f'For{head}' if head else ''}, AutoTokenizer\n\n"
        f'model = AutoModel{f"For{head}" if head else ""}.from_pretrained("path/to/this/folder")\n'
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")'
    )
