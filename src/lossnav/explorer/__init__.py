"""The explorer: a page on which a person changes what a learner believes and sees the path change.

`lossnav.explorer.api` is the whole of it as pure functions, dict in and dict out; `lossnav.explorer.server`
puts them behind a web page, and `lossnav.explorer.export` writes that page with answers worked out before.
"""
