"""The live web page of a migration: read-only, for any number of readers, without a script or font from elsewhere.

`feed` looks at both clusters while somebody reads, and keeps the newest status as JSON. `pages` serves this JSON and
the files of the page. The page asks again every two seconds; its script shows text as text, never as markup.

feed     the newest status for all readers
history  samples of the whole migration, for plots
pages    the page's paths, with their security headers
metrics  the newest status for Prometheus
page/    the page: index.html, page.css, page.js
"""
