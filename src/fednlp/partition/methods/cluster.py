"""Clients that differ in what their texts are about: FedNLP (Lin et al. 2022), section 3.2."""

from fednlp.errors import PartitionError
from fednlp.option_types import PositiveInt
from fednlp.partition.cluster import cluster_groups, default_clusters
from fednlp.partition.embed import embed
from fednlp.partition.methods import Alpha, Beta, Clients, partitioner
from fednlp.partition.methods.label import by_groups
from fednlp.partition.request import Assignment, Request


@partitioner("feature shift (clusters of sentence embeddings)", reads_texts=True)
def cluster(
    request: Request,
    clients: Clients,
    alpha: Alpha,
    beta: Beta | None = None,
    clusters: PositiveInt | None = None,
    encoder: str = "minilm",
) -> Assignment:
    """Give each client clusters of sentence embeddings in the shares of a draw from Dir(alpha · prior).

    Args:
        request: The examples.
        clients: C.
        alpha: Concentration of the shares.
        beta: Concentration of the sizes; None for sizes that differ by at most one.
        clusters: Number of clusters; as many as labels if left out, at least 2, or 10 without labels.
        encoder: Name or folder of the encoder of the texts.

    Raises:
        PartitionError: There are no texts.
    """
    if request.train_texts is None or (request.test_texts is None and len(request.test_labels)):
        raise PartitionError("method 'cluster' needs the texts of the training and test examples")
    labels = None if request.label_names is None else len(request.label_names)
    count = clusters or min(default_clusters(labels), len(request.train_texts))
    train, test = (
        embed(texts, encoder, max_length=request.max_length, progress=request.progress)
        for texts in (request.train_texts, request.test_texts or ())
    )
    return by_groups(request, *cluster_groups(train, test, count, request.seed), clients, alpha, beta)
