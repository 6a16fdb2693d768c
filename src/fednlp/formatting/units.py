"""Numbers and metrics as people read them: percent, bytes, time."""

import math

from fednlp.formatting.safe_text import clean as clean

_STEPS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_CLOCK = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_ENERGY = (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0))
_PLAIN_METRICS = (
    *("loss", "perplexity", "bleu", "mse", "log_likelihood"),
    *("reward_margin", "chosen_log_likelihood", "rejected_log_likelihood"),
)
_CORRELATIONS = ("mcc", "pearson", "spearman")

DASH = "–"
HIDDEN = "not told"
"""What stands for a number that a site keeps to itself."""


def is_share(metric: str) -> bool:
    """Tell whether a metric, or its spread, is a share of one, shown in percent.

    >>> is_share("accuracy"), is_share("loss"), is_share("bleu_std"), is_share("mcc")
    (True, False, False, False)
    """
    return _whole_set(metric) not in (*_PLAIN_METRICS, *_CORRELATIONS)


def is_correlation(metric: str) -> bool:
    """Tell whether a metric, or its spread, is a coefficient between -1 and 1, which is shown as it is.

    >>> is_correlation("mcc"), is_correlation("pearson_worst_decile"), is_correlation("accuracy")
    (True, True, False)
    """
    return _whole_set(metric) in _CORRELATIONS


def _whole_set(metric: str) -> str:
    """Return the metric whose mean, worst decile or spread over clients this is."""
    return metric.removesuffix("_client_mean").removesuffix("_worst_decile").removesuffix("_std")


def metric_title(metric: str) -> str:
    """Return a metric's name in words.

    >>> metric_title("macro_f1"), metric_title("mcc"), metric_title("accuracy_client_mean")
    ('macro F1', 'MCC', 'accuracy, plain mean over clients')
    """
    words = {
        "f1": "F1",
        "mcc": "MCC",
        "bleu": "BLEU",
        "mse": "MSE",
        "log_likelihood": "log-likelihood of a token",
        "chosen_log_likelihood": "log-likelihood of a token, chosen",
        "rejected_log_likelihood": "log-likelihood of a token, rejected",
        "pearson": "Pearson",
        "spearman": "Spearman",
    }
    words |= {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rouge_l": "ROUGE-L"}
    words |= {
        "choice_accuracy_norm": "choice accuracy per character",
        "constant_accuracy": "best constant answer",
    }
    suffixes = {
        "_client_mean": ", plain mean over clients",
        "_worst_decile": ", worst decile",
        "_std": ", spread over clients",
    }
    for suffix, words_of_suffix in suffixes.items():
        if metric.endswith(suffix):
            return metric_title(metric.removesuffix(suffix)) + words_of_suffix
    name = clean(metric)
    return words.get(name) or " ".join(words.get(word, word) for word in name.split("_"))


def capital(text: str) -> str:
    """Begin a sentence.

    >>> capital("label shift, alpha 1")
    'Label shift, alpha 1'
    """
    return text[:1].upper() + text[1:]


def bytes_unit(value: float) -> tuple[str, float]:
    """Return the decimal unit that suits so many bytes, and its size.

    >>> bytes_unit(6.18e9)
    ('GB', 1000000000.0)
    """
    return next(((name, size) for name, size in _STEPS if abs(value) >= size), _STEPS[-1])


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit that suits so many seconds (from two of it on), and its size.

    >>> time_unit(90), time_unit(600)
    (('s', 1.0), ('min', 60.0))
    """
    return next(((name, size) for name, size in _CLOCK if abs(seconds) >= 2 * size), _CLOCK[-1])


def joules_unit(joules: float) -> tuple[str, float]:
    """Return the unit that suits so much energy, and its size in joules.

    >>> joules_unit(75_900), joules_unit(12)
    (('kJ', 1000.0), ('J', 1.0))
    """
    return next(((name, size) for name, size in _ENERGY if abs(joules) >= size), _ENERGY[-1])


def human_joules(joules: float) -> str:
    """Return energy in the unit that suits it, three digits.

    >>> human_joules(75_900), human_joules(12)
    ('75.9 kJ', '12 J')
    """
    return _in_unit(joules, *joules_unit(joules))


def human_bytes(value: float) -> str:
    """Return bytes in decimal units, three digits.

    >>> human_bytes(6_180_000_000), human_bytes(999), human_bytes(0)
    ('6.18 GB', '999 B', '0 B')
    """
    return _in_unit(value, *bytes_unit(value))


def human_seconds(seconds: float) -> str:
    """Return a length of time as people say it, in the unit or the two units that suit it.

    >>> human_seconds(1.94), human_seconds(185), human_seconds(600), human_seconds(7535)
    ('1.94 s', '3 min 5 s', '10 min', '2 h 6 min')
    """
    if not math.isfinite(seconds) or seconds < 60:
        return _in_unit(seconds, "s", 1.0)
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def _in_unit(value: float, unit: str, size: float) -> str:
    return f"{digits(value / size)} {unit}" if math.isfinite(value) else DASH


def digits(value: float) -> str:
    """Return three significant digits, and never an exponent.

    >>> digits(0), digits(1.234), digits(12.34), digits(1234.5)
    ('0', '1.23', '12.3', '1234')
    """
    return str(int(value)) if value == int(value) and abs(value) < 1000 else f"{value:.{places(value)}f}"


def places(value: float) -> int:
    """Return how many decimals show three significant digits, at most four.

    >>> places(1.5), places(58.3), places(4711), places(0)
    (2, 1, 0, 0)
    """
    return min(4, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 0


def human_number(value: object) -> str:
    """Return any JSON value for a table: whole numbers grouped, other numbers in four digits.

    >>> human_number(4386178), human_number(0.53491), human_number(None)
    ('4,386,178', '0.5349', '–')
    """
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return clean(value)


def metric_value(metric: str, value: object) -> str:
    """Return one metric value for people: shares in percent with one decimal, others in four digits.

    >>> metric_value("accuracy", 0.5349), metric_value("loss", 2.10456), metric_value("mcc", 0.58492)
    ('53.5 %', '2.105', '0.5849')
    """
    if not isinstance(value, int | float) or not math.isfinite(value):
        return DASH
    return f"{100 * value:.1f} %" if is_share(metric) else f"{value:.4g}"


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "round"), plural(2, "round"), plural(0, "epoch"), plural(12000, "client")
    ('1 round', '2 rounds', '0 epochs', '12,000 clients')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
