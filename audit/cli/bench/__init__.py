"""How fast this machine does what an audit does, beside its best matrix product.

`subjects` says what is trained, `rivals` and `pytorch` train the same in other ways,
`clock` times, `rows` has one function per group of lines, `measure` runs them and
`written` shows them as text, JSON and a roofline figure.
"""
