"""Input that means harm: logs, URLs, releases and texts drawn by a seed, and what must hold for each of them.

words       the pieces: ids and pages with HTML, formulas, control characters; times that are none
urls        a million URLs against the rules one by one, ada-url, and what SQL cuts off
records     logs of every format, written from records
logs        a plain model knows the events of a written log; with bytes changed at random it is refused, or no line is lost
releases    folders of vectors that lie: names that lead outside, links, other schemas, sizes and numbers
pages       what a night of hostile ids and pages leaves for people to read
"""
