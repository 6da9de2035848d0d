"""A web page about a run, for people who do not run a peer: `peer page`, and the setting `page` of a running peer.

The page is one file without scripts and without requests to anybody, with a JSON file of the same facts beside it.  Its
facts are the run's manifest, the record chain and the event log on this disk, and the status of the running peer; the page
leaves out what docs/guides/privacy.md does not allow.

Read `facts.py` first, which decides what the page tells; then `history.py`, which reads the run's folder, `document.py`,
which writes the page with the curves of `chart.py`, and `writer.py`, which writes the files.
"""
