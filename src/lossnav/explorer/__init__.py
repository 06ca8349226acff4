"""The explorer: a page where changing what a learner believes changes its path.

`lossnav.explorer.api` answers questions with pure functions, dict in and dict out;
`lossnav.explorer.server` puts them behind a web page, and `lossnav.explorer.export` writes that
page with precomputed answers.
"""
