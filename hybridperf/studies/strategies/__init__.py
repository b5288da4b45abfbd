"""MAD-Max's question (Hsia et al., ISCA 2024): which strategy for which class of layers?"""
