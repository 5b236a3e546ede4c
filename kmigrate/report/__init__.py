"""Reports of checks and migrations, as text of files and values for the screen. Pure, but for the page's template.

`verify` renders the parity report. The demo's screen, JSON file and exit code come from the migration report.

    check            link, clusters and time of a comparison, and escapes for markup
    parity_page      the HTML page of a parity report
    parity_chart     the page's plots by partition, and over the records' time
    parity_junit     JUnit XML of a parity report
    playbook_junit   JUnit XML of a run of a playbook
    migration        the report of a judged migration
"""
