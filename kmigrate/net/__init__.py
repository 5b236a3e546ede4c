"""The only package that touches sockets, the clock and tasks.

stream    a socket as a stream of whole frames
buffers   memory of large frames
dial      addresses of a host name, and new connections
tls       TLS contexts, names of TLS failures, handshakes of accepted connections
certificate_expiry  when a listener's certificate expires
login     SASL logins to a broker
session   logins, and answers in the order of requests
broker    our own connection to a broker
http      a small server for metrics and probes
clock     time and sleep
tasks     owned tasks
stamps    changes of files
process   names of processes
retry     rounds, looks and tries with pauses
"""
