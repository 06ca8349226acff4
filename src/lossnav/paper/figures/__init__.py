"""The paper's figures, drawn again: one module for each, ``data()`` and then ``draw(data)``."""
