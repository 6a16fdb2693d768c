"""The federations that FedNLP's papers make of published data sets: clients, partition, sizes."""

from collections.abc import Mapping

_BENCHMARK = "Lin et al. 2022, Table 2"
_PLATFORM = "Lin et al. 2021, Table 1"

PAPER_CLIENTS: Mapping[str, str] = {
    "20news": f"100, label shift with alpha = 1 ({_BENCHMARK}); 100 ({_PLATFORM})",
    "ontonotes": f"30, label shift with alpha = 0.1, train_size = 50000, test_size = 5000 ({_BENCHMARK})",
    "mrqa": f"6, natural by dataset, train_size = 53900, test_size = 3000 ({_BENCHMARK})",
    "gigaword": f"100, cluster shift with alpha = 0.1, train_size = 10000 ({_BENCHMARK})",
    "agnews": f"1,000 ({_PLATFORM})",
    "sst2": f"30 ({_PLATFORM})",
    "sentiment140": f"10,000 ({_PLATFORM})",
    "ploner": f"50, 7 clusters ({_PLATFORM})",
    "wnut17": f"30, 10 clusters ({_PLATFORM})",
    "wikiner": f"1,000, 10 clusters ({_PLATFORM})",
    "squad": f"300, 30 clusters ({_PLATFORM})",
    "cornell": f"617, natural ({_PLATFORM})",
    "cnn-dailymail": f"100, 50 clusters ({_PLATFORM})",
    "shakespeare": f"1,129, natural ({_PLATFORM})",
    "reddit": f"1,660,820, natural ({_PLATFORM})",
}
"""By the data set's name, the number of clients and what is stated of the partition, with the place in the paper."""
