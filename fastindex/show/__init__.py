"""Display of layouts: explanations, advice, names, SVG and text pictures, HTML pages and the live page."""
