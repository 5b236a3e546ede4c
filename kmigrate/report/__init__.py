"""Reports of checks and migrations, as text of files and values for the screen. Pure, but for the page's template.

`verify` renders the parity report as an HTML page and as JUnit XML. `check` names the comparison in both. The demo
judges the run as a migration report: the screen, the JSON file and the exit code come from this value.

    check            link, clusters and time of a comparison, and escapes for markup
    parity_page      the HTML page of a parity report
    parity_chart     the page's plots by partition, and over the records' time
    parity_junit     JUnit XML of a parity report
    migration        the report of a judged migration
"""
