"""How the glyphs that come with metastep are drawn; `python -m study run make_glyphs` writes them."""
