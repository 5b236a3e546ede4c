"""Reports of checks, promotes and migrations, as text of files and values for the screen. Pure, but for the templates.

`verify` renders the parity report, and `report export` the page of a promote or rollback. The demo's screen, JSON file
and exit code come from the migration report.

    check            link, clusters and time of a comparison, and escapes for markup
    page             the environment of the templates of all pages
    promote_page     the HTML page of a promote or rollback
    promote_steps    the same report in words, also for the screen
    pause_chart      the page's plot of the pause by partition
    parity_page      the HTML page of a parity report
    parity_chart     the page's plots by partition, and over the records' time
    parity_junit     JUnit XML of a parity report
    playbook_junit   JUnit XML of a run of a playbook
    migration        the report of a judged migration
"""
