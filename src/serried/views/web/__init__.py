"""The web page of `serried watch --web`: an API that only reads, and a page of plain JavaScript that shows it.

runs         the status of all runs, refreshed by a thread while a browser asks
documents    runs, curves, samples, logs and files as JSON values
app          routes, and the checks that every request passes
server       the listening socket, a port of this machine or a Unix socket
static/      the page; uPlot (MIT licence) draws curves
"""
