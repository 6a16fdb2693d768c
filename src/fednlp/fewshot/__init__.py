"""Few labels (FeS, Cai et al. 2023): rules that are pure here, and a place for each room that they reach.

``config`` is the section ``[fewshot]``, ``simulation`` the rounds in which clients also label, ``deployment`` the
labels that sites keep. The section names them (:attr:`fednlp.section.Section.places`).
"""
